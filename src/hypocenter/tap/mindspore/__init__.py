"""Values out of a running MindSpore program. Imported only where MindSpore is; knows nothing of torch."""
