"""In: the environment that `hypocenter run` set. Out: a session in every process that imports torch, code unchanged."""
