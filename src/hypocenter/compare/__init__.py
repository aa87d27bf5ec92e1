"""Two recordings in, one Comparison out: sites paired, distances against a measured noise floor, the first apart."""
