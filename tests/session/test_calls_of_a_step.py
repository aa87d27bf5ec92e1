"""What a watched step costs, in calls: the same on every machine, which its time is not."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from hypocenter.session import whereabouts

N_BEFORE, N_COUNTED = 72, 16  # steps: between them nothing is looked for anew, as it is in the 64th
PYTHON, ALL = 500, 1380  # calls that a watched step of a small model adds: of Python functions, and with those of C;
# alone 485 and 1325, in a worker that has run other tests some more
PER_PARAMETER = 0.1  # calls more: what comes once in a block of steps
PER_OPERATION = 21, 84  # the same, of one more operation of loss code
PER_BLOCK = 2, 6  # of a convolution and a norm, whose three buffers are copied


@pytest.fixture(scope="module", autouse=True)
def what_a_job_has_imported() -> None:
    """It costs the job nothing at each step. Here, that only one worker imports it."""
    import deepspeed  # noqa: F401
    import megatron.core.tensor_parallel.random  # noqa: F401


@pytest.fixture(scope="module", autouse=True)
def no_write_is_slow() -> Iterator[None]:
    """A write that had to wait for the processor is followed by calls that count it: none on a quiet machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whereabouts, "SLOW_NS", 10**12)
        yield


class Scales(nn.Module):
    """Parameters that one call uses together."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.stack(list(self.scales)).mean(0)


class Residual(nn.Module):
    """A block of a small resnet."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm(self.convolution(x)))


def calls(step: Callable[[], None]) -> tuple[float, float]:
    """Calls of Python functions a step, and of all functions.

    The two steps with the most are left out: a block of rows is sealed, or a file looked at, by the clock.
    """
    of_python, of_all = [0] * N_COUNTED, [0] * N_COUNTED
    index = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        of_python[index] += event == "call"
        of_all[index] += event in ("call", "c_call")

    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        for index in range(N_COUNTED):  # noqa: B007  # `count` reads it
            step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return fmean(sorted(of_python)[:-2]), fmean(sorted(of_all)[:-2])


def added(model: nn.Module, x: Tensor, folder: Path, n_operations: int = 2) -> tuple[float, float]:
    """Calls that watching adds to a step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        for _ in range(n_operations - 2):
            loss = loss * 1.0
        loss.backward()
        optimizer.step()

    for _ in range(4):
        step()
    plain = calls(step)
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, audit="never", out=str(folder)):
        for _ in range(N_BEFORE):
            step()
        watched = calls(step)
    return watched[0] - plain[0], watched[1] - plain[1]


def of_scales(n: int, folder: Path, n_operations: int = 2) -> tuple[float, float]:
    return added(Scales(n), torch.randn(4, 8), folder, n_operations)


@pytest.fixture(scope="module")
def of_few(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float]:
    return of_scales(6, tmp_path_factory.mktemp("few"))


def test_a_watched_step_adds_no_more_calls_than_this(of_few: tuple[float, float]) -> None:
    assert of_few[0] <= PYTHON
    assert of_few[1] <= ALL


@pytest.mark.night
def test_a_parameter_more_is_no_call_more(of_few: tuple[float, float], tmp_path: Path) -> None:
    of_many = of_scales(600, tmp_path)

    assert of_many[0] - of_few[0] <= PER_PARAMETER * 594
    assert of_many[1] - of_few[1] <= PER_PARAMETER * 594


def test_an_operation_of_loss_code_adds_no_more_than_this(of_few: tuple[float, float], tmp_path: Path) -> None:
    of_more = of_scales(6, tmp_path, n_operations=22)

    assert of_more[0] - of_few[0] <= PER_OPERATION[0] * 20
    assert of_more[1] - of_few[1] <= PER_OPERATION[1] * 20


def test_a_module_more_is_no_call_of_python_more(tmp_path: Path) -> None:
    small, large = (
        added(nn.Sequential(*(Residual() for _ in range(n))), torch.randn(2, 4, 8, 8), tmp_path / str(n))
        for n in (2, 12)
    )

    assert large[0] - small[0] <= PER_BLOCK[0] * 10
    assert large[1] - small[1] <= PER_BLOCK[1] * 10
