"""Calls of ops.clip_by_global_norm: what it clips, before it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hypocenter.tap.mindspore.patches import Patches


class ClipListener(Protocol):
    """What is told of clipping."""

    def before_clip(self, gradients: Sequence[Any]) -> None: ...


class ClipTap:
    """Tells of clipping to a global norm: a cell inside MindSpore's function.

    Attributes:
        paused: nothing is told.
    """

    def __init__(self, listener: ClipListener) -> None:
        self._listener = listener
        self.paused = False

    def attach(self, patches: Patches) -> None:
        """Patch the clipping; `patches` takes it off."""
        try:
            from mindspore.ops.function.clip_func import _ClipByGlobalNorm  # pyright: ignore[reportMissingImports]
        except ImportError:  # another version of MindSpore
            return
        patches.wrap(_ClipByGlobalNorm, "__call__", self._called)

    def _called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(clip: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.paused and args and isinstance(args[0], (tuple, list)):
                self._listener.before_clip(args[0])
            return original(clip, *args, **kwargs)

        return __call__
