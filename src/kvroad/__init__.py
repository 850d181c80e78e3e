"""kvroad."""
