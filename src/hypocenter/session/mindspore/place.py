"""The device that this process computes on, as MindSpore tells."""

from __future__ import annotations

import mindspore as ms  # pyright: ignore[reportMissingImports]


def device() -> tuple[str, str]:
    """("cpu", ""), ("npu:3", "Ascend910B")."""
    target = str(ms.get_context("device_target"))
    if target == "CPU":
        return "cpu", ""
    number = int(ms.get_context("device_id"))
    try:
        name = str(ms.hal.get_device_name(number))
    except Exception:  # another version of MindSpore
        name = target
    return ("npu" if target == "Ascend" else "cuda") + f":{number}", name
