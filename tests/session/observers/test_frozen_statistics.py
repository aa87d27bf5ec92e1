"""Statistics that go on moving after their norm was frozen are told, by how far; what is meant so is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

AT, N_STEPS, WIDTH = 40, 80, 6
Freeze = Callable[[nn.Module], object]


def weights(backbone: nn.Module) -> None:
    backbone.requires_grad_(False)


def all_of_it(backbone: nn.Module) -> None:
    backbone.requires_grad_(False).eval()


def nothing(backbone: nn.Module) -> None:
    pass


def begun_anew(backbone: nn.Module) -> None:
    backbone.requires_grad_(False)
    backbone[1].reset_running_stats()  # type: ignore[index]


def without_momentum(backbone: nn.Module) -> None:
    backbone.requires_grad_(False)
    backbone[1].momentum = 0.0  # type: ignore[index]


def told(
    out: Path, freeze: Freeze, *, at: int = AT, shift: float = 0.0, n: int = 32, each: Freeze = nothing
) -> list[tuple[str, str, int]]:
    torch.manual_seed(0)
    backbone, head = nn.Sequential(nn.Linear(WIDTH, 12), nn.BatchNorm1d(12), nn.ReLU()), nn.Linear(12, 3)
    model = nn.Sequential(backbone, head)
    with hypocenter.watch(out=str(out)):
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        for step in range(N_STEPS):
            if step == at:
                freeze(backbone)
                optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 1e-3)
            each(backbone)
            optimizer.zero_grad()
            model(torch.randn(n, WIDTH) + shift * (step >= at)).square().mean().backward()
            optimizer.step()
    found = [f for f in diagnose(open_run(out)).findings if f.code == "HC263"]
    return [(f.severity, str(f.site), f.step) for f in found]


def test_they_are_far_away_on_other_data(tmp_path: Path) -> None:
    assert [each[:2] for each in told(tmp_path, weights, shift=2.0)] == [("warning", "0.1")]


def test_on_the_same_data_they_only_go_on(tmp_path: Path) -> None:
    ((severity, site, step),) = told(tmp_path, weights)

    assert (severity, site) == ("note", "0.1")
    assert step in (AT - 1, AT)  # while the old optimizer lives, the new one's first update belongs to its last step


def test_a_batch_of_two_is_no_other_data(tmp_path: Path) -> None:
    assert {severity for severity, *_ in told(tmp_path, weights, n=2)} <= {"note"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("freeze", "at"),
    [
        pytest.param(all_of_it, AT, id="they are frozen with it"),
        pytest.param(nothing, AT, id="it is trained on"),
        pytest.param(weights, 0, id="it was never trained here"),
        pytest.param(begun_anew, AT, id="they are measured anew"),
        pytest.param(without_momentum, AT, id="they stay"),
    ],
)
def test_what_is_meant_so(tmp_path: Path, freeze: Freeze, at: int) -> None:
    found = told(tmp_path, freeze, at=at, shift=2.0)

    assert found == []


@pytest.mark.slow
@pytest.mark.parametrize("n_turn", [1, 5, 12])
def test_networks_that_take_turns(tmp_path: Path, n_turn: int) -> None:
    """One is frozen while the other is trained, and both are in the mode of training."""
    torch.manual_seed(0)
    makes, judges = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    with hypocenter.watch(out=str(tmp_path / "run")):
        both = [torch.optim.Adam(net.parameters(), 1e-2) for net in (makes, judges)]
        for step in range(96):
            turn = step // n_turn % 2
            makes.requires_grad_(turn == 0)
            judges.requires_grad_(turn == 1)
            both[turn].zero_grad()
            ((-1) ** turn * judges(3 * makes(torch.randn(16, 4))).mean()).backward()
            both[turn].step()

    assert [f.code for f in diagnose(open_run(tmp_path / "run")).findings if f.code == "HC263"] == []
