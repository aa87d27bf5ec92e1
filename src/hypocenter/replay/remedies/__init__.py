"""Cures to try in a replay. One file, one remedy: how it is applied around a replay, and how it is said in words.

`catalogue.REMEDIES` lists them, `kinds.RemedyKind` is their shape. `islands.island` is the lasting form of the first.
"""
