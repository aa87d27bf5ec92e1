"""Cures to try in a replay. One file, one remedy: `needs(evidence)`, and how to apply it around a replay."""
