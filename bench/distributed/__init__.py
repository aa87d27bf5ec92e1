"""What recording costs in a job of several ranks, against the same job without it."""
