"""One TOML file = the keys of one framework: their items, and what it takes when they are not said."""
