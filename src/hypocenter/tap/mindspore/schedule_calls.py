"""Steps of the learning-rate schedulers of mindspore.experimental.optim, whoever calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore.experimental.optim import lr_scheduler  # pyright: ignore[reportMissingImports]

from hypocenter.tap.mindspore.patches import Patches


def attach(patches: Patches, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Callable[[], None]:
    """Hear `step` of every scheduler class there is.

    A scheduler that steps others counts once; the first step, which a constructor does, is not told.

    Args:
        patches: of the session: they take it off.
        tell: called after each step, with the scheduler and its optimizer.
        fail: told when that raises; nothing more is told then.

    Returns:
        What ends it.
    """
    alive, depth = [True], [0]

    def listened(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            try:
                found = original(scheduler, *args, **kwargs)
            finally:
                depth[0] -= 1
            if alive and not depth[0]:
                try:
                    tell(scheduler, getattr(scheduler, "optimizer", None))
                except Exception as error:
                    alive.clear()
                    fail(f"schedulers are no longer followed after an internal error: {error!r}")
            return found

        return step

    def made(original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
            depth[0] += 1
            try:
                original(scheduler, *args, **kwargs)
            finally:
                depth[0] -= 1

        return __init__

    for base in ("LRScheduler", "ReduceLROnPlateau"):
        for kind in _with_own(getattr(lr_scheduler, base, None), "step"):
            patches.wrap(kind, "step", listened)
        for kind in _with_own(getattr(lr_scheduler, base, None), "__init__"):
            patches.wrap(kind, "__init__", made)
    return alive.clear


def _with_own(kind: type | None, name: str) -> list[type]:
    if kind is None:
        return []
    own = [kind] if name in vars(kind) else []
    return own + [each for sub in kind.__subclasses__() for each in _with_own(sub, name)]
