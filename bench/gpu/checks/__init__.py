"""One file = one check."""
