"""Planners: each turns a launch into a plan. Pure functions, no host needed."""
