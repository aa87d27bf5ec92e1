"""One file = one kind of configuration that people have: what is said in it, key by key, and where."""
