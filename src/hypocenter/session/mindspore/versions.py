"""What a run was made with."""

from __future__ import annotations

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np


def versions() -> dict[str, str]:
    """MindSpore's first: it is the framework's name."""
    return {"mindspore": str(ms.__version__), "numpy": str(np.__version__)}


def device_target() -> str:
    """CPU, GPU or Ascend."""
    return str(ms.get_context("device_target"))
