"""In: the readings of a run. Out: what another format, or another loss scale, would do to them."""
