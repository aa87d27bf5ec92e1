"""One file = one rule over ranks."""
