"""A plan in, an alignment out: the staged procedure by which two training programs are brought to the same numbers."""
