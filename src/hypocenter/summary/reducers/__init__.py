"""Tensors in, Summaries out: one reducer per framework, loaded by full path only where that framework is in use."""
