"""Exit statuses of the agent; the names are those of sysexits.h."""

__all__ = ["BUSY", "DATA", "IO", "LEFT_BEHIND", "OK"]

OK = 0
DATA = 65  # EX_DATAERR: no plan of this version
LEFT_BEHIND = 70  # EX_SOFTWARE: processes could not be ended
IO = 74  # EX_IOERR: the disk
BUSY = 75  # EX_TEMPFAIL: somebody else has the host
