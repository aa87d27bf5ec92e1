"""Curves out of what people already have: one file = one kind of log, told by its content."""
