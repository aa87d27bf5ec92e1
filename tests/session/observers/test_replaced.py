"""A trained parameter in whose place the model has one that asks for no gradient is told of, unless it is meant."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

Change = Callable[[nn.Module], object]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items, self.up, self.out = nn.Embedding(12, 6), nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, at: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.up(self.items(at))))


def grown(model: Net, *, freeze: bool) -> None:
    weight = torch.cat([model.items.weight.detach(), torch.randn(3, 6)])
    model.items = nn.Embedding.from_pretrained(weight, freeze=freeze)


def frozen(model: Net) -> None:
    model.items.requires_grad_(False)


def all_frozen(model: Net) -> None:
    """What was trained becomes a part that is only used, below a new head."""
    for name in ("items", "up"):
        setattr(model, name, copy.deepcopy(getattr(model, name)).requires_grad_(False))


def there_and_back(model: Net) -> None:
    """An average is evaluated in its place."""
    own, model.items = model.items, copy.deepcopy(model.items).requires_grad_(False)
    with torch.no_grad():
        model(torch.arange(4))
    model.items = own


def told(change: Change, out: Path) -> list[tuple[str, int, str]]:
    torch.manual_seed(0)
    model = Net()
    with contextlib.redirect_stderr(None), hypocenter.watch(model, out=str(out), relations="never"):
        for step in range(14):
            if step in (0, 8):
                if step:
                    change(model)
                optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad])
            optimizer.zero_grad()
            model(torch.randint(0, 12, (8,))).square().mean().backward()
            optimizer.step()
    return [(f.severity, f.step, f.site or "") for f in findings(out) if f.title.endswith("has no gradient any more")]


def test_a_table_that_grows_and_comes_back_frozen(tmp_path: Path) -> None:
    assert told(lambda model: grown(model, freeze=True), tmp_path) == [("warning", 8, "items.weight")]


@pytest.mark.parametrize(
    "change", [lambda model: grown(model, freeze=False), frozen, all_frozen, there_and_back],
    ids=["trained", "frozen", "most of it", "there and back"],
)  # fmt: skip
def test_what_is_meant(change: Change, tmp_path: Path) -> None:
    assert told(change, tmp_path) == []
