"""One file = one stage of an alignment."""
