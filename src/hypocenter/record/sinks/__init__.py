"""A catalogue: one file is one sink. In: each step's readings and each finding. Out: wherever the sink puts them."""
