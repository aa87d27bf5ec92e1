"""A recording in, files of another tool out. What a recording does not hold is said, never made up."""
