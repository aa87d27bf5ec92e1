"""`accumulation=K`: Trainers of Transformers and Lightning take batches K times smaller, and K times as many a step.

`accumulation=K,ranks`: batches of Transformers are K times smaller, for as many ranks.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from hypocenter.session.imposed.later import when_imported

Note = Callable[[str], None]
_BATCH, _STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
_LIGHTNING = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")


def begin(value: str, note: Note) -> None:
    """Change the batches of each of these trainers, once it is imported."""
    number, _, over = value.partition(",")
    k = int(number)
    when_imported("transformers.training_args", functools.partial(_transformers, k, 1 if over else k, note))
    for module in () if over else _LIGHTNING:
        when_imported(module, functools.partial(_lightning, module, k, note))


def _transformers(k: int, more: int, note: Note) -> None:
    arguments = sys.modules["transformers.training_args"].TrainingArguments
    original = arguments.__post_init__

    @functools.wraps(original)
    def __post_init__(self: Any) -> None:
        size, steps = getattr(self, _BATCH), getattr(self, _STEPS)
        if size % k == 0:
            setattr(self, _BATCH, size // k)
            setattr(self, _STEPS, steps * more)
            note(f"{_BATCH} {size} becomes {size // k}, {_STEPS} {steps} becomes {steps * more}")
        else:
            note(f"left: {_BATCH} {size} is no multiple of {k}")
        original(self)

    arguments.__post_init__ = __post_init__


def _lightning(module: str, k: int, note: Note) -> None:
    trainer = sys.modules[module].Trainer
    make, load = trainer.__init__, DataLoader.__init__
    signature = inspect.signature(load)

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        steps = kwargs.get("accumulate_grad_batches", 1)
        kwargs["accumulate_grad_batches"] = steps * k
        note(f"accumulate_grad_batches {steps} becomes {steps * k}")
        make(self, *args, **kwargs)

    @functools.wraps(load)
    def smaller(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        size = given.arguments.get("batch_size", 1)
        if given.arguments.get("batch_sampler") is None and isinstance(size, int) and size % k == 0:
            given.arguments["batch_size"] = size // k
            note(f"batch_size {size} becomes {size // k}")
        elif given.arguments.get("batch_sampler") is None:
            note(f"left: batch_size {size} is no multiple of {k}")
        load(*given.args, **given.kwargs)

    trainer.__init__ = __init__
    DataLoader.__init__ = smaller  # type: ignore[method-assign]
