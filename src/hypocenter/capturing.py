"""Whether a device writes down what it is asked to do now, to do it again later: a CUDA graph, or an NPU's.

Nothing of ours may happen then. To wait for the device or to read its random state is an error that ends the program's
capture, and a kernel of ours would run again at each replay.
"""

from __future__ import annotations

import sys
from typing import Any

ABLE: dict[str, tuple[Any, ...]] = {}  # by the name of torch's backend outside: modules of devices that can capture


def is_capturing(kind: str | None = None) -> bool:
    """Return whether torch, if imported, is capturing a graph now. This runs for each operation of loss code.

    Args:
        kind: of device; None: of any that can capture.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or kind in ("cpu", "meta"):
        return False
    if kind is not None:
        modules = (vars(torch).get(kind),)
    else:
        outside = getattr(torch._C, "_get_privateuse1_backend_name", str)()  # npu, once torch_npu is imported
        modules = ABLE.get(outside)
        if modules is None:
            modules = _modules(torch, outside)
    for module in modules:
        ask = getattr(module, "is_current_stream_capturing", None)
        if ask is not None and getattr(module, "is_initialized", bool)() and ask():
            return True
    return False


def reuses_memory() -> bool:
    """Return whether compiled code replays graphs here (mode="reduce-overhead"): any result of it, and any gradient
    that it has given, is overwritten by its next run, whoever holds it.
    """
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    return bool(getattr(getattr(trees, "local", None), "tree_manager_containers", None))


def _modules(torch: Any, outside: str) -> tuple[Any, ...]:
    """Return the modules of devices that this torch can use and that can capture. `outside`: of another package."""
    built = (name for name in ("cuda", "xpu", outside) if getattr(torch._C, f"_has_{name}", True))
    there = (vars(torch).get(name) for name in built)
    found = tuple(module for module in there if hasattr(module, "is_current_stream_capturing"))
    if outside == "privateuseone" or outside in vars(torch):  # else it is named, and to come
        ABLE[outside] = found
    return found
