"""Comparing two runs, measured: `python -m bench.compare NAME`; each file with a `main` is one measurement."""
