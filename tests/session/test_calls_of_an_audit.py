"""What an audited step costs, in calls: its time is another on each machine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from tests.session.test_calls_of_a_step import Scales, calls

N_BEFORE, N_COUNTED = 72, 16  # steps: between them is none that looks at more than others do
PYTHON, ALL = 2600, 5600  # calls that an audit adds to a watched step of a small model: the replay's among them
PER_PARAMETER = 37.0, 102.0  # calls more: of Python functions, and with those of C; a third are of the replay itself


class Counted(torch.autograd.Function):
    """The identity, which counts its passes."""

    n_backwards = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        Counted.n_backwards += 1
        return grads[0]


class Net(nn.Module):
    """Counts its calls; what it is made of may change."""

    n_forwards = 0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.extra = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 16)
        self.n_extra = 0

    def forward(self, x: Tensor) -> Tensor:
        Net.n_forwards += 1
        x = Counted.apply(self.first(x)).relu()  # type: ignore[no-untyped-call]
        for _ in range(self.n_extra):
            x = self.extra(x)
        return self.last(x)


def passes(folder: Path, begin: Callable[[int, Net], None] = lambda *_: None) -> Mapping[int, tuple[int, int]]:
    """Calls of the model and passes of backward in each step of a run of which all are audited."""
    model, x, found = Net(), torch.randn(4, 8), dict[int, tuple[int, int]]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    options = dict[str, Any](relations="never", out=str(folder))
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, audit="every=1", **options):
        for step in range(40):
            begin(step, model)
            Net.n_forwards = Counted.n_backwards = 0
            optimizer.zero_grad()
            (model(x).square().mean() + model.extra.weight.square().mean()).backward()
            optimizer.step()
            found[step] = Net.n_forwards, Counted.n_backwards
    return found


def test_a_healthy_step_is_done_once_more(tmp_path: Path) -> None:
    each = passes(tmp_path)

    plain = [step for step in range(9, 40) if step & (step - 1)]
    learns = [step for step in plain if each[step] != (2, 2)]  # sizes of values are learned now and then
    assert all(each[step] == (2, 2) for step in plain[-4:])
    assert len(learns) <= 5


def test_one_of_another_form_is_done_twice_more_and_then_is_known(tmp_path: Path) -> None:
    def begin(step: int, model: Net) -> None:
        model.n_extra = int(step in (34, 36, 38))

    each = passes(tmp_path, begin)

    assert each[34] == (3, 3)
    assert each[36] == each[37] == each[38] == (2, 2)


def test_a_program_that_has_no_usual_form_is_done_once_more_all_the_same(tmp_path: Path) -> None:
    def begin(step: int, model: Net) -> None:
        model.n_extra = step

    each = passes(tmp_path, begin)

    assert all(each[step] == (2, 2) for step in range(34, 40))


def added(n_parameters: int, folder: Path) -> tuple[float, float]:
    """Calls that an audit adds to a watched step."""
    model, x = Scales(n_parameters), torch.randn(4, 8)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-4), list[tuple[float, float]]()

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for audit in ("never", "every=1"):
        out = str(folder / audit)
        with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, audit=audit, out=out):
            for _ in range(N_BEFORE):
                step()
            found.append(calls(step))
    return found[1][0] - found[0][0], found[1][1] - found[0][1]


@pytest.fixture(scope="module")
def of_few(tmp_path_factory: pytest.TempPathFactory) -> tuple[float, float]:
    return added(6, tmp_path_factory.mktemp("few"))


def test_an_audit_adds_no_more_calls_than_this(of_few: tuple[float, float]) -> None:
    assert of_few[0] <= PYTHON
    assert of_few[1] <= ALL


@pytest.mark.night
def test_a_parameter_more_is_few_calls_more(of_few: tuple[float, float], tmp_path: Path) -> None:
    of_many = added(900, tmp_path)

    assert of_many[0] - of_few[0] <= PER_PARAMETER[0] * 894
    assert of_many[1] - of_few[1] <= PER_PARAMETER[1] * 894
