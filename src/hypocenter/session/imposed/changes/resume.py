"""A trainer that is called without a checkpoint gets this one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from hypocenter.session.imposed.later import when_imported

_TRAINERS = {
    "transformers.trainer": ("train", "resume_from_checkpoint", 0),
    "lightning.pytorch.trainer.trainer": ("fit", "ckpt_path", 4),
    "pytorch_lightning.trainer.trainer": ("fit", "ckpt_path", 4),
}
"""Module -> method of its `Trainer`, the argument, and its place after `self`."""


def begin(path: str, note: Callable[[str], None]) -> None:
    """Give the checkpoint to each of these trainers, once it is imported."""
    for module in _TRAINERS:
        when_imported(module, functools.partial(_replace, module, path, note))


def _replace(module: str, path: str, note: Callable[[str], None]) -> None:
    name, argument, at = _TRAINERS[module]
    trainer = sys.modules[module].Trainer
    original = getattr(trainer, name)

    @functools.wraps(original)
    def resuming(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[at] if len(args) > at else kwargs.get(argument)
        if not given:
            note(f"{argument}={path}")
            if len(args) > at:
                args = (*args[:at], path, *args[at + 1 :])
            else:
                kwargs[argument] = path
        return original(self, *args, **kwargs)

    setattr(trainer, name, resuming)
