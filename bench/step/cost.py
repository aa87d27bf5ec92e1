"""Watched and plain steps in turn, in one process."""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory

from bench.step.models import build

N_WARM_UP = 8  # untimed: names are found, the optimizer's state is made
N_TIMED = 32  # steps of a block
FIXED_MS, PARAMETER_MS = 0.4, 0.0015  # what `sentinel` may cost a step, and for each parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one model: CPU time of a plain step and what a watched one takes more, in milliseconds."""

    n_parameters: int
    n_calls: int  # of modules, a step
    plain_ms: float
    more_ms: float
    audited_times: float  # a step that is audited, by a plain one

    @property
    def budget_ms(self) -> float:
        """What `sentinel` may add."""
        return FIXED_MS + PARAMETER_MS * self.n_parameters


def measure(name: str, level: str, n_pairs: int, n_warm_up: int = N_WARM_UP) -> Cost:
    """In this process: train a model with and without Hypocenter, in turn.

    Args:
        n_warm_up: untimed steps of each block: the first hundred of a run are looked at closer than those after them.
    """
    import torch

    import hypocenter

    torch.set_num_threads(1)
    model, optimizer, step = build(name)
    plain: list[float] = []
    more: list[float] = []
    audited: list[float] = []
    with TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        for number in range(n_pairs):
            plain.append(_block(step))
            with hypocenter.watch(model, optimizer, level=level, audit="never", out=f"{folder}/{number}"):
                more.append(_block(step, n_warm_up) - plain[-1])
            with hypocenter.watch(model, optimizer, level=level, audit="every=1", out=f"{folder}/audited-{number}"):
                audited.append(_block(step, n_warm_up) / plain[-1])
    return Cost(
        n_parameters=len(list(model.parameters())), n_calls=len(list(model.modules())),
        plain_ms=1000 * statistics.median(plain), more_ms=1000 * statistics.median(more),
        audited_times=statistics.median(audited),
    )  # fmt: skip


def _block(step: Callable[[], None], n_warm_up: int = N_WARM_UP) -> float:
    """CPU seconds of a step."""
    for _ in range(n_warm_up):
        step()
    began = time.process_time()
    for _ in range(N_TIMED):
        step()
    return (time.process_time() - began) / N_TIMED
