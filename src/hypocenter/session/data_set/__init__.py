"""A data set and its collate function in, the laws that they break out: asked in a forked child, which ends then."""
