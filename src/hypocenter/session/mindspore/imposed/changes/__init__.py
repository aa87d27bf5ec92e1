"""One file = one change that `hypocenter twin` makes inside of a MindSpore process: a function `begin(value, note)`."""
