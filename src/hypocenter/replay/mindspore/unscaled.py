"""A replay without loss scaling: mindspore.amp's scalers hand the loss on as it is."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from mindspore import amp  # pyright: ignore[reportMissingImports]


@contextlib.contextmanager
def unscaled() -> Generator[None, None, None]:
    """Within this block `scaler.scale(loss)` is the loss."""
    held: list[tuple[type, Any]] = []
    try:
        for kind in _below(amp.LossScaler):
            if "scale" in vars(kind):
                held.append((kind, vars(kind)["scale"]))
                kind.scale = _as_it_is  # type: ignore[attr-defined]
        yield
    finally:
        for kind, scale in held:
            kind.scale = scale  # type: ignore[attr-defined]


def _as_it_is(scaler: Any, inputs: Any) -> Any:
    return inputs


def _below(kind: Any) -> list[Any]:
    return [each for sub in kind.__subclasses__() for each in (sub, *_below(sub))]
