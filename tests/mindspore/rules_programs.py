"""MindSpore programs with one fault each, and their healthy twins; shared by the tests of rules."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


def normal(*shape: int, scale: float = 1.0, seed: int = 0, dtype: Any = ms.float32) -> Any:
    return Tensor((np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)).astype(dtype)


def findings(out: Any, net: Any, loop: Any, **options: Any) -> dict[str, Any]:
    """By code, the first of each: what is said of `loop()`, which trains `net`."""
    with hypocenter.watch(net, out=str(out), **options):
        loop()
    found: dict[str, Any] = {}
    for finding in diagnose(open_run(out)).findings:
        found.setdefault(finding.code, finding)
    return found


def dense(n_in: int = 8, n_out: int = 4, dtype: Any = ms.float32) -> Any:
    ms.set_seed(1)
    net = nn.Dense(n_in, n_out)
    for parameter in net.get_parameters():
        parameter.set_dtype(dtype)
    return net
