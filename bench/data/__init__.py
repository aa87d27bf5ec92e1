"""Faults of the data in loaders of four kinds: what is found, at which step, and what is said of healthy data."""
