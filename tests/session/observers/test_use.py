"""A part of one layer that no optimizer holds is told; whole layers, and a part of every layer, are a choice."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        (("1.up",), [("warning", "1.up.weight")]),
        (("1.",), [("note", "1.up.weight")]),
        (("1.up", "0.up", "2.up"), [("note", "0.up.weight")]),
        ((), []),
    ],
)
def test_a_hole_in_one_of_many_layers_is_told(
    tmp_path: Path, left_out: tuple[str, ...], told: list[tuple[str, str]]
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Layer(), Layer(), Layer())
    held = [p for name, p in model.named_parameters() if not name.startswith(left_out or ("none",))]
    optimizer = torch.optim.SGD(held, lr=0.01)

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(8):
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = diagnose(open_run(tmp_path / "run")).findings
    assert [(each.severity, each.param) for each in found if each.code == "HC233"] == told


@pytest.mark.parametrize(("held", "severity"), [(3, "warning"), (1, "note")], ids=["the old head", "no head"])
def test_a_head_that_the_optimizer_holds_the_old_one_of_is_a_warning(tmp_path: Path, held: int, severity: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 10))
    optimizer = torch.optim.SGD(model[:held].parameters(), lr=0.01)
    model[2] = nn.Linear(12, 3)  # for another number of classes

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(8):
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    found = diagnose(open_run(tmp_path / "run")).findings
    assert [(each.severity, each.param) for each in found if each.code == "HC233"] == [(severity, "2.weight")]


@pytest.mark.parametrize("first", [1, 2])
def test_what_a_new_optimizer_leaves_out_is_a_stage_of_training(tmp_path: Path, first: int) -> None:
    """Nothing is frozen, and the model is what it was: no optimizer holds another tensor of that name."""
    torch.manual_seed(0)
    layers = [nn.Linear(8, 8) for _ in range(3)]
    model = nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(out=str(tmp_path)):
        for step in range(10):
            if step == 3:
                held = [p for layer in layers[first:] for p in layer.parameters()]
                optimizer = torch.optim.SGD(held, lr=0.01)
                gc.collect()  # the one before it holds itself
            model.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()

    assert [each.title for each in diagnose(open_run(tmp_path)).findings if each.severity != "note"] == []


def test_gradients_that_other_lines_take_after_training_are_for_another_purpose(tmp_path: Path) -> None:
    """An attack on what is trained, or the importance of its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.arange(4) % 3
    with hypocenter.watch(out=str(tmp_path)):
        for _ in range(6):
            optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(4, 8)), labels).backward()
            optimizer.step()
        attacked = torch.randn(4, 8, requires_grad=True)
        for _ in range(20):
            functional.cross_entropy(model(attacked), labels).backward()

    assert [each.title for each in diagnose(open_run(tmp_path)).findings if each.severity != "note"] == []


def test_a_term_whose_weight_goes_down_to_nothing_is_a_note(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"body": nn.Linear(8, 8), "head": nn.Linear(8, 3), "beside": nn.Linear(8, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = torch.arange(4) % 3
    with hypocenter.watch(out=str(tmp_path)):
        for step in range(20):
            hidden = model["body"](torch.randn(4, 8)).tanh()
            loss = functional.cross_entropy(model["head"](hidden), labels)
            loss = loss + max(0.0, 1.0 - step / 8) * functional.cross_entropy(model["beside"](hidden), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    found = [each for each in diagnose(open_run(tmp_path)).findings if each.code == "HC233"]
    assert [(each.severity, each.step, each.title) for each in found] == [
        ("note", 8, "model.beside.bias has no gradient any more")
    ]
    assert "multiplied by 0" in found[0].why[-1]
