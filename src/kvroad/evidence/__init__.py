"""Text to records: no I/O, standard library only, Python 3.10 or newer."""
