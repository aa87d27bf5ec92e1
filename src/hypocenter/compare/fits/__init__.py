"""Name the cause of a difference: one file = one hypothesis, taken only if it explains more than 90 % of it."""
