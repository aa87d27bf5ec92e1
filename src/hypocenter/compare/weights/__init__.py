"""In: two checkpoints of any format. Out: one answer about their tensors, or one in the other's layout."""
