"""One launch on a host, from its preflight to the folders of its cells."""
