"""Dumps of other tools in, run directories of ours out; what a format does not hold is said, never invented."""
