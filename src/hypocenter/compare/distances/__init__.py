"""How far two columns of rows are apart, at depth summary and sketch: one file = one depth."""
