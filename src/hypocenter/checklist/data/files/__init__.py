"""Data files that trainings read: one file = one kind, opened without running anything; `rows` compares two."""
