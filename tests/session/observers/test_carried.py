"""A state that is carried from step to step, and what an evaluation leaves of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, EVERY, ROWS = 20, 8, 4


class Carries(nn.Module):
    """A recurrent model that goes on where it stopped."""

    state: Any

    def __init__(self, kind: str = "gru") -> None:
        super().__init__()
        self.cell = (nn.LSTM if kind == "lstm" else nn.GRU)(3, 6, batch_first=True)
        self.head, self.is_read, self.is_buffer = nn.Linear(6, 3), kind != "unread", kind == "buffer"
        if self.is_buffer:
            self.register_buffer("state", torch.zeros(1, ROWS, 6))
        else:
            self.state = None

    def forward(self, x: Tensor) -> Tensor:
        state = self.state if self.is_read else None
        state = tuple(each.detach() for each in state) if isinstance(state, tuple) else state
        hidden, new = self.cell(x, state.detach().clone() if isinstance(state, Tensor) else state)
        if self.is_buffer:
            self.state.copy_(new.detach())
        else:
            self.state = new
        return self.head(hidden)


Evaluate = Callable[[Carries], None]


def look(model: Carries) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.randn(ROWS, 5, 3))
    model.train()


def without_gradients(model: Carries) -> None:
    model.state = None
    with torch.no_grad():
        model(torch.randn(ROWS, 5, 3))


def put_back(model: Carries) -> None:
    kept = model.state
    look(model)
    model.state = kept


def put_back_as_a_copy(model: Carries) -> None:
    kept = model.state.detach().clone()
    look(model)
    model.state = kept


def reset(model: Carries) -> None:
    look(model)
    model.state = None


def to_zeros(model: Carries) -> None:
    look(model)
    model.state = torch.zeros(1, ROWS, 6)


def nothing(model: Carries) -> None:
    """No look at all."""


def detached(model: Carries) -> None:
    model.state = model.state.detach()


def train(
    out: Path, kind: str, evaluate: Evaluate, *, before: Evaluate = nothing, after: Evaluate = nothing
) -> list[tuple[str, int, str | None]]:
    """Train on long streams and evaluate now and then; return what is told."""
    torch.manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out)):
        model = Carries(kind)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for step in range(N_STEPS):
            before(model)
            x = torch.randn(ROWS, 5, 3)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), x).backward()
            optimizer.step()
            after(model)
            if step % EVERY == EVERY - 1:
                evaluate(model)
    told = [each for each in findings(out) if each.severity != "note"]
    return [(each.code, each.step, each.site) for each in told]


@pytest.mark.parametrize(
    ("kind", "evaluate", "after"),
    [
        ("gru", look, nothing),
        ("gru", without_gradients, nothing),
        ("gru", look, detached),
        ("lstm", look, nothing),
        ("buffer", look, nothing),
    ],
)
def test_a_state_that_an_evaluation_leaves_is_told(
    kind: str, evaluate: Evaluate, after: Evaluate, tmp_path: Path
) -> None:
    assert train(tmp_path, kind, evaluate, after=after) == [("HC231", EVERY, "state")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("gru", {"evaluate": put_back}),
        ("gru", {"evaluate": put_back_as_a_copy}),
        ("gru", {"evaluate": reset}),
        ("gru", {"evaluate": to_zeros}),
        ("gru", {"evaluate": look, "before": without_gradients}),
        ("gru", {"evaluate": look, "after": reset}),
        ("unread", {"evaluate": look}),
    ],
    ids=["put back", "as a copy", "reset", "zeros", "warmed up before each", "reset at each", "nobody reads it"],
)
def test_what_is_put_back_or_begins_anew_is_not(kind: str, options: dict[str, Evaluate], tmp_path: Path) -> None:
    assert train(tmp_path, kind, **options) == []
