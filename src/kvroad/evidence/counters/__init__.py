"""Kinds of byte counter, one to a file; read on the host, so standard library only."""
