"""In: Evidence. Out: a Verdict or None. One file per cause; its docstring is its manual page."""
