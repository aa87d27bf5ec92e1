"""Logs or runs in, one CurveComparison out: loss, gradient norm and schedule of two long trainings, step by step."""
