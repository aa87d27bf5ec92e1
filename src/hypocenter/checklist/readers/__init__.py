"""One file = one kind of configuration."""
