"""A replay without what the program does to gradients on their way."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence

from torch import Tensor


@contextlib.contextmanager
def without_hooks(parameters: Sequence[Tensor]) -> Generator[None, None, None]:
    """Keep the program's hooks on its parameters from changing gradients here: what the hooks do is to be found."""
    own = [(hooks, dict(hooks)) for p in parameters if (hooks := getattr(p, "_backward_hooks", None))]
    for hooks, _ in own:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in own:
            hooks.update(before)
