"""In: hypocenter.compare.repeats.answer.Determinism. Out: the screen of `hypocenter determinism`."""
