"""A catalogue: one file is one way that an alert can go."""
