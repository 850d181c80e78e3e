"""Frames from frames: tables, statistics, cost model, verdict. No host, no picture."""
