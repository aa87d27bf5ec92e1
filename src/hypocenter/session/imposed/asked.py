"""Whether anything is to be imposed while a program trains."""

from __future__ import annotations

from hypocenter.config import Config


def changes_training(config: Config) -> bool:
    """Return whether training is to be other than the program's own."""
    return config.impose_lr is not None or bool(config.initial_weights) or bool(config.gradients_from)
