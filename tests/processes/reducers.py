"""A fault of torch 2.13 that ends a run of several ranks in a deadlock, now and then, and what tests do about it.

DDP's Reducer is let go with the interpreter's lock held. If it has the last reference to a gloo group, that joins
gloo's thread, which may be waiting for the same lock to let go of a Python object that an all-reduce carried. Under
load one short run in twenty ends so, with Hypocenter or without. `keep_reducers` lets go of no Reducer any more.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any


def keep_reducers() -> None:
    """From now on every Reducer of this process, and of its forks, lives as long as the process itself."""
    import torch.distributed as dist

    if not hasattr(dist.Reducer, "__wrapped__"):
        dist.Reducer = _kept(dist.Reducer)  # type: ignore[misc]  # a factory serves: nobody asks for its type


def _kept(make: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make, updated=())
    def reducer(*args: Any, **kwargs: Any) -> Any:
        made = make(*args, **kwargs)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))  # a list would be emptied when the interpreter ends
        return made

    return reducer
