"""In: rows of a recording, one rank and step at a time. Out: findings. Pure: the same live or after a crash."""
