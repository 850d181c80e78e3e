"""The host agent: runs any plan, owns its processes, and leaves nothing behind."""
