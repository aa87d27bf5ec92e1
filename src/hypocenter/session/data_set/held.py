"""Whether what a data set holds may be read in a forked child: nothing there reaches another process, or a device."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor

_MOST, _OF_EACH = 4096, 8  # objects that are looked at, and elements of one container
_SHARING = ("multiprocessing.", "torch.multiprocessing", "_multiprocessing", "ray", "zmq", "grpc", "redis", "lmdb")
_LEAVES = (str, bytes, int, float, complex, bool, type(None), ModuleType)


def is_private(*held: Any) -> bool:
    """Return whether all that can be reached from here, as far as one looks, is this process's own, on the host."""
    waiting, seen = deque[Any](held), set[int]()
    while waiting and len(seen) < _MOST:
        value = waiting.popleft()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.device.type != "cpu" or value.is_shared():
                return False
        elif type(value).__module__.startswith(_SHARING) or isinstance(value, torch.Generator):
            if not isinstance(value, torch.Generator) or value.device.type != "cpu":
                return False
        elif not isinstance(value, type):
            waiting.extend(_inside(value))
    return True


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.nn.Module):
        yield from itertools.chain(value.parameters(), value.buffers())
    elif isinstance(value, functools.partial):
        yield from (cast("Any", value.func), *cast("Any", value.args), *cast("Any", value.keywords).values())
    elif isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, FunctionType):
        yield from _of_function(value)
    elif isinstance(value, Mapping):
        yield from itertools.islice(cast("Mapping[Any, Any]", value).values(), _OF_EACH)
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from itertools.islice(cast("list[Any]", value), _OF_EACH)
    elif not type(value).__module__.startswith(("numpy", "torch._C")):
        yield from list(getattr(value, "__dict__", {}).values())
        for name in ("__getitem__", "__getitems__", "__call__"):
            if isinstance(method := getattr(type(value), name, None), FunctionType):
                yield method


def _of_function(function: FunctionType) -> Iterator[Any]:
    if function.__module__.partition(".")[0] in sys.stdlib_module_names or function.__module__.startswith("torch."):
        return
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it holds nothing yet
            yield cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield function.__globals__[name]
