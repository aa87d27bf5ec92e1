"""A healthy micro-batch in, what it must not depend on and does out: inputs are changed in a replay, and looked at.

`check.look` asks every relation of the catalogue. What each changes and what must stay is in its own file.
"""
