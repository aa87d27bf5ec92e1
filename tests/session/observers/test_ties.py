"""What was one parameter and is two copies since a model was loaded is named; a model of another kind is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, AT = 8, 4


class Net(nn.Module):
    def __init__(self, *, is_tied: bool = True) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(12, 6), nn.Linear(6, 12, bias=False)
        if is_tied:
            self.head.weight = self.tok.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.tok(ids))


def tied_again(model: Net) -> Net:
    found = Net()
    found.load_state_dict(model.state_dict())
    return found


def never_tied_again(model: Net) -> Net:
    found = Net(is_tied=False)
    found.load_state_dict(model.state_dict())
    return found


def assigned(model: Net) -> Net:
    found = Net()
    found.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    return found


def untied_in_place(model: Net) -> Net:
    model.head.weight = nn.Parameter(model.tok.weight.detach().clone())
    return model


def begun_anew(model: Net) -> Net:
    return Net(is_tied=False)


def begun_alike(model: Net) -> Net:
    """Another model, untied, whose two weights begin as copies: as those of layers that are cloned."""
    found = Net(is_tied=False)
    found.head.weight.data.copy_(found.tok.weight.data)
    return found


def the_same(model: Net) -> Net:
    return model


@pytest.mark.parametrize(
    ("again", "n"),
    [
        (never_tied_again, 1),
        (assigned, 1),
        (untied_in_place, 1),
        (tied_again, 0),
        (begun_anew, 0),
        (begun_alike, 0),
        (the_same, 0),
    ],
)
def test_a_tie_that_is_not_made_again(again: Callable[[Net], Net], n: int, tmp_path: Path) -> None:
    assert told(tmp_path, Net(), again) == [("HC265", "warning", AT, "head.weight")] * n


def test_what_was_never_tied(tmp_path: Path) -> None:
    assert not told(tmp_path, untied_in_place(Net()), never_tied_again)


def told(out: Path, model: Net, again: Callable[[Net], Net]) -> list[tuple[str, str, int, str]]:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        for step in range(N_STEPS):
            if step == AT:
                model = again(model)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            ids = torch.randint(0, 12, (8, 5))
            optimizer.zero_grad()
            functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
            optimizer.step()
    return [(f.code, f.severity, f.step, f.site) for f in findings(out) if f.code == "HC265"]
