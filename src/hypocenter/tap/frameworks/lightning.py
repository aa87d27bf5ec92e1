"""Lightning: names are those of the LightningModule, whose parts may be called separately from `training_step`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from hypocenter.tap.frameworks.door import Door

needs = "lightning.pytorch"


def attach(door: Door) -> Callable[[], None]:
    """Name the model when `Trainer.fit` begins; returns the undo."""
    trainer = sys.modules[needs].Trainer
    original = trainer.fit

    @functools.wraps(original)
    def fit(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        door.add_root(model)
        return original(self, model, *args, **kwargs)

    trainer.fit = fit

    def undo() -> None:
        if trainer.fit is fit:
            trainer.fit = original

    return undo
