"""Counts the waits of plain and of watched steps in this process."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.syncs.features import FEATURES, Training

N_WARM_UP = 8  # not counted: names are found, the optimizer's state is made
N_STEPS = 80  # counted: as many as the longest turn of what takes turns, several times


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What watching adds to a step."""

    usual: int  # waits of the host, of the median step
    allowed: int  # so many at level sentinel
    mean: float
    most: int
    before_update: int  # of these, between the last gradient and the first kernel of the optimizer: the median
    from_host: float  # copies to the device that the host waits for: the mean
    kernels: float
    places: Counter[tuple[str, ...]]  # where in Python, as of `Syncs`


def count(make: Callable[[], Training], level: str, n_steps: int = N_STEPS) -> Count:
    """Train with and without Hypocenter."""
    import hypocenter

    plain = _Steps(make(), n_steps)
    made = make()
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        stack.enter_context(contextlib.redirect_stderr(None))
        stack.enter_context(
            hypocenter.watch(made.model, made.optimizer, level=level, audit="never", out=f"{folder}/run")
        )
        watched = _Steps(made, n_steps)
    more = [b - a for a, b in zip(plain.waits, watched.waits, strict=True)]
    early = [b - a for a, b in zip(plain.early, watched.early, strict=True)]
    return Count(
        usual=sorted(more)[len(more) // 2], allowed=made.n_waits, mean=sum(more) / n_steps, most=max(more),
        before_update=sorted(early)[len(early) // 2],
        from_host=(watched.n_from_host - plain.n_from_host) / n_steps,
        kernels=(watched.n_kernels - plain.n_kernels) / n_steps,
        places=watched.places - plain.places,
    )  # fmt: skip


def begin() -> None:
    """Make the device, once in a process."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "devices"))
    import npu_backend
    import torch

    torch.set_num_threads(1)
    npu_backend.begin()


def count_feature(feature: str, level: str) -> Count:
    """Of one feature, by its name."""
    return count(FEATURES[feature], level)


class _Steps:
    """Steps, each with its waits: all, and those before the optimizer's first kernel."""

    def __init__(self, training: Training, n_steps: int) -> None:
        import npu_backend

        self.waits: list[int] = []
        self.early: list[int] = []
        for _ in range(N_WARM_UP):
            training.step(lambda: None)
        at_backward, at_update = [0], [0]
        with npu_backend.Syncs() as syncs:
            # an optimizer's own hooks come after those of all optimizers, which are ours
            hook = training.optimizer.register_step_pre_hook(lambda *_: at_update.append(syncs.n))
            for _ in range(n_steps):
                before = syncs.n
                training.step(lambda: at_backward.append(syncs.n))
                self.waits.append(syncs.n - before)
                self.early.append(at_update[-1] - at_backward[-1])
            hook.remove()
        self.n_from_host, self.n_kernels, self.places = syncs.by_kind["from_host"], syncs.n_kernels, syncs.places
