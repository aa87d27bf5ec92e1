"""A catalogue: one file is one kind of file that a recording can be exported to."""
