"""Jumps that are planted in small training programs: what is said of them, and whether harmless ones accuse anybody.

In: `python -m bench.spikes`. Out: a line for each program, then a table.
"""
