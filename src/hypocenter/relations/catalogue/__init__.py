"""One file = one relation: what it changes, what must stay, what may not be compared, with its manual page."""
