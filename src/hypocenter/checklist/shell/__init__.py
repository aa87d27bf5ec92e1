"""Shell scripts read as data: words, variables, arrays and arithmetic are followed, and nothing is ever executed."""
