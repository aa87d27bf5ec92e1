"""Steps that draw the same numbers, layers of equal units, checkpoints loaded in part; and what is none of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.session.observers import after_use
from hypocenter.session.observers.loads import renamed
from tests.session.observers.test_laws import findings

CODES = ("HC239", "HC254", "HC255")
N_STEPS = 20


class Net(nn.Module):
    def __init__(self, p: float = 0.1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.dropout, self.head = nn.Dropout(p), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(self.body(x)))


def told(
    out: Path, *, before: Callable[[Net], None] = lambda _: None, each: Callable[[int], None] = lambda _: None,
    p: float = 0.1,
) -> list[tuple[str, int, str]]:  # fmt: skip
    """Codes, steps and sites of a training."""
    torch.manual_seed(0)
    model = Net(p)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.Generator().manual_seed(0)
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, out=str(out), audit="never"):
        before(model)
        for step in range(N_STEPS):
            each(step)
            x, y = torch.randn(8, 6, generator=data), torch.randint(0, 3, (8,), generator=data)
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return [(f.code, f.step, f.site) for f in findings(out) if f.code in CODES]


def seeded(_: int) -> None:
    torch.manual_seed(3)


def test_a_seed_in_the_loop(tmp_path):
    assert told(tmp_path, each=seeded) == [("HC239", 3, "laws")]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("each", "p"),
    [(lambda _: None, 0.1), (torch.manual_seed, 0.1), (seeded, 0.0)],
    ids=["a seed before the loop", "a seed for each step", "nothing is drawn"],
)
def test_numbers_that_are_others_or_none(tmp_path, each, p):
    assert not told(tmp_path, each=each, p=p)


def constant(model: Net) -> None:
    nn.init.constant_(model.body[0].weight, 0.1)
    nn.init.zeros_(model.body[0].bias)
    nn.init.constant_(model.body[2].weight, 0.1)
    nn.init.zeros_(model.body[2].bias)


def test_a_layer_of_equal_units(tmp_path):
    assert told(tmp_path, before=constant, p=0.0) == [("HC254", 0, "body.0.weight")]


def test_units_that_dropout_or_the_next_layer_tells_apart(tmp_path):
    assert not told(tmp_path / "zeros", before=lambda model: nn.init.zeros_(model.head.weight))
    assert not told(tmp_path / "one", before=lambda model: nn.init.constant_(model.body[0].weight, 0.1))


def renamed_state(model: Net, old: str, new: str) -> dict[str, torch.Tensor]:
    return {name.replace(old, new): value + 1 for name, value in model.state_dict().items()}


def test_a_checkpoint_with_other_names_for_a_part(tmp_path):
    def load(model: Net) -> None:
        model.load_state_dict(renamed_state(model, "body.", "module.body."), strict=False)

    assert told(tmp_path, before=load) == [("HC255", 0, "body.0.weight")]


@pytest.mark.parametrize(
    ("old", "new"), [("head.", "classifier.out."), ("", "")], ids=["a head that is made anew", "all of it"]
)
def test_a_checkpoint_that_is_loaded_as_it_is_meant(tmp_path, old, new):
    assert not told(tmp_path, before=lambda m: m.load_state_dict(renamed_state(m, old, new), strict=False))


def test_a_strict_load_that_fails_fails_as_ever(tmp_path):
    def load(model: Net) -> None:
        with pytest.raises(RuntimeError, match="Unexpected key"):
            model.load_state_dict(renamed_state(model, "body.", "module.body."))

    assert not told(tmp_path, before=load)


NAMES = st.lists(st.sampled_from("abc"), min_size=2, max_size=4).map(".".join)


@given(st.sets(NAMES, max_size=6), st.sampled_from(["module.", "model.", ""]))
def test_names_with_a_prefix_are_found_again_or_nobody_can_tell(names, prefix):
    missing = dict.fromkeys(names, (2, 3))

    found = renamed(missing, {prefix + name: shape for name, shape in missing.items()})

    assert all(name in missing and other.endswith(name.split(".", 1)[1]) for name, other in found)
    assert not renamed(missing, {prefix + name: (3, 2) for name in names})


def after_each_step(out: Path, change: Callable[[Net], None], *, zeroes_late: bool = False) -> list[str]:
    """Codes of a training that does something between the step and the next backward."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, out=str(out), audit="never"):
        for _ in range(N_STEPS):
            if not zeroes_late:
                optimizer.zero_grad()
            functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()
            change(model)
            if zeroes_late:
                optimizer.zero_grad()
    return [f.code for f in findings(out) if f.code == "HC257"]


def halved(model: Net) -> None:
    for p in model.parameters():
        assert p.grad is not None
        p.grad /= 2


@pytest.mark.parametrize("zeroes_late", [False, True])
def test_gradients_that_are_changed_too_late(tmp_path, zeroes_late):
    assert after_each_step(tmp_path, halved, zeroes_late=zeroes_late) == ["HC257"]


def test_gradients_in_the_memory_of_a_graph_are_overwritten_by_its_next_run(tmp_path, monkeypatch):
    monkeypatch.setattr(after_use, "reuses_memory", lambda: True)

    assert after_each_step(tmp_path, halved) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        lambda _: None,
        lambda model: model.zero_grad(set_to_none=False),
        lambda model: [p.grad.square().sum() for p in model.parameters()],
    ],
    ids=["nothing", "set to zero", "looked at"],
)
def test_gradients_that_are_left_as_they_were(tmp_path, change):
    assert not after_each_step(tmp_path, change)


def test_gradients_that_go_on_to_the_next_update(tmp_path):
    """A momentum that is kept in the gradients."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, out=str(tmp_path), audit="never"):
        for _ in range(N_STEPS):
            functional.cross_entropy(model(torch.randn(8, 6)), torch.randint(0, 3, (8,))).backward()
            optimizer.step()
            halved(model)

    assert not [f for f in findings(tmp_path) if f.code == "HC257"]
