"""In: a Window of rows. Out: findings. One file per rule; its docstring is its manual page."""
