"""The composition root for MindSpore: taps, summaries, records and replays of one process that trains with it."""
