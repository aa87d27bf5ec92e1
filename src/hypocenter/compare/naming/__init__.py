"""Site names of frameworks in, canonical names out. One TOML file = the naming of one model library."""
