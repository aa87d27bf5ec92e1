"""A comparison as one page: both module trees, errors against their noise in execution order, a table, curves."""
