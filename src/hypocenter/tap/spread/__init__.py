"""Which part of a logical tensor the values on this rank are, read from what the model and its groups are."""
