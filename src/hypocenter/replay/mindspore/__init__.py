"""A failed PyNative step of MindSpore done again under an op trace: evidence."""
