"""One file = one change that `hypocenter twin` makes inside of a process: a function `begin(value, note)`."""
