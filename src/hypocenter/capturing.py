"""Whether a device writes down what it is asked to do now, to do it again later: a CUDA graph, or an NPU's.

Nothing of ours may happen then. To wait for the device or to read its random state is an error that ends the program's
capture, and a kernel of ours would run again at each replay.
"""

from __future__ import annotations

import sys
from typing import Any


def is_capturing(kind: str | None = None) -> bool:
    """Ask torch, if it is there.

    Args:
        kind: of device; None: of any that can capture.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or kind in ("cpu", "meta"):
        return False
    for name in _kinds(torch) if kind is None else (kind,):
        module = vars(torch).get(name)
        ask = getattr(module, "is_current_stream_capturing", None)
        if ask is not None and getattr(module, "is_initialized", bool)() and ask():
            return True
    return False


def _kinds(torch: Any) -> tuple[str, ...]:
    get_other = getattr(torch._C, "_get_privateuse1_backend_name", str)  # npu, once torch_npu is imported
    return "cuda", get_other(), "xpu"
