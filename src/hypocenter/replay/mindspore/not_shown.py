"""What MindSpore's dispatch mode does not show: slices of tensors, and functions that run as compiled graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore.common import api  # pyright: ignore[reportMissingImports]

from hypocenter.replay.mindspore.host import flat


@dataclass(frozen=True, slots=True)
class Shown:
    """What the mode did not show, in the form in which it shows operators."""

    name: str
    run: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """Run it again."""
        return self.run(*args)


def show_more(
    is_listening: Callable[[], bool],
    n_seen: Callable[[], int],
    view: Callable[[Callable[..., Any], Any, Any], None],
    compiled: Callable[[Any, list[Any], tuple[Any, ...]], None],
) -> Callable[[], None]:
    """Tell of slices and compiled functions, until the returned function is called.

    Args:
        n_seen: how many operators were shown; what was shown all the same is not told again.
        view: gets (what takes the slice again, the tensor, the slice).
        compiled: gets (the function, tensors among its arguments, its results).
    """
    original = ms.Tensor.__getitem__

    def indexed(tensor: Any, index: Any) -> Any:
        n_before = n_seen()
        out = original(tensor, index)
        if is_listening() and isinstance(out, ms.Tensor) and n_seen() == n_before:
            view(lambda t: original(t, index), tensor, out)
        return out

    ms.Tensor.__getitem__ = indexed
    executor = api._JitExecutor
    run = executor.__call__

    def called(function: Any, *args: Any, **kwargs: Any) -> Any:
        n_before = n_seen()
        out = run(function, *args, **kwargs)
        if is_listening() and n_seen() == n_before:
            compiled(function, list(flat(args, kwargs)), tuple(flat(out)))
        return out

    executor.__call__ = called
    return functools.partial(
        _put_back, [(ms.Tensor, "__getitem__", indexed, None), (executor, "__call__", called, run)]
    )


def _put_back(patches: Sequence[tuple[Any, str, Any, Any]]) -> None:
    for owner, name, ours, had in patches:
        if vars(owner).get(name) is not ours:
            continue  # somebody patched over us: theirs stays
        if had is None:
            delattr(owner, name)
        else:
            setattr(owner, name, had)
