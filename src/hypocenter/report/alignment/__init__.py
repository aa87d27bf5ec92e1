"""An alignment in, text and pages out: the ladder of stages, the one that failed in full."""
