"""The reference of a Trainer that shares memory with what it trains is named; one with weights of its own is not."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import Trainer

import hypocenter
from hypocenter.nouns import Finding
from tests.session.observers.test_laws import findings

Reference = Callable[[nn.Module], nn.Module]


class Preferences(Trainer):
    """Holds a model against a reference, as trainers of TRL do, and needs nothing else of a Trainer."""

    def __init__(self, model: nn.Module, reference: Any, name: str) -> None:
        self.model = model
        setattr(self, name, reference)
        self._reference = reference

    def train(self) -> None:
        optimizer = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], 0.1)
        for _ in range(5):
            x = torch.randn(8, 6)
            with torch.no_grad():
                held_against = self._reference(x)
            optimizer.zero_grad()
            nn.functional.softplus(held_against - self.model(x) + 1.0).mean().backward()
            optimizer.step()


def one_memory(model: nn.Module) -> nn.Module:
    reference = copy.deepcopy(model)
    for theirs, ours in zip(reference.parameters(), model.parameters(), strict=True):
        theirs.data = ours.data
    return reference


def frozen_part(model: nn.Module) -> nn.Module:
    """The first layer is shared, and nobody moves it."""
    model[0].requires_grad_(False)
    reference = copy.deepcopy(model)
    reference[0] = model[0]
    return reference


@pytest.mark.parametrize("reference", [one_memory, copy.copy])
@pytest.mark.parametrize("name", ["ref_model", "teacher_model"])
def test_a_reference_that_is_the_model_is_told_once(reference: Reference, name: str, tmp_path: Path) -> None:
    (finding,) = told(reference, tmp_path, name)

    assert (finding.step, finding.severity, finding.confidence) == (0, "warning", "proven")
    assert finding.title == "the reference model of Preferences is the model that is trained"
    assert "0.weight, and those of 3 more" in finding.why[0]


@pytest.mark.parametrize("reference", [copy.deepcopy, frozen_part, lambda model: model])
def test_what_is_none_is_left_alone(reference: Reference, tmp_path: Path) -> None:
    assert told(reference, tmp_path) == []


def test_who_plays_may_share_the_weights(tmp_path: Path) -> None:
    assert told(one_memory, tmp_path, "player") == []


def told(reference: Reference, out: Path, name: str = "ref_model") -> list[Finding]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(out), audit="never"):
        Preferences(model, reference(model), name).train()
    return [each for each in findings(out) if each.code == "HC261"]
