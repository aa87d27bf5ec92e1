"""The cure of a failed step: the smallest float32 island, searched, verified by replay, compared, shown as a diff."""
