"""Pair sites of two runs: one file = one matcher; a chain of them, each for what those before left over."""
