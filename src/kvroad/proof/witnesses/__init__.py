"""Each holds one kind of record against what a launch claims."""
