"""One file = one kind of dump."""
