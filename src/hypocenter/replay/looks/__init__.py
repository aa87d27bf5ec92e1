"""One file = one thing that is looked at when a step is done again for its health; see hypocenter.replay.looking."""
