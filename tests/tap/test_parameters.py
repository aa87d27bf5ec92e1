"""tap/parameters.py: parameters, gradients and optimizer state under the user's names."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from hypocenter.config import Config
from hypocenter.tap.names import NameMap
from hypocenter.tap.parameters import parameter_readings


@pytest.fixture
def names():
    names = NameMap()
    yield names
    names.close()


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def test_values_gradients_and_adam_state_are_read(names, reducer, clock) -> None:
    model = torch.compile(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)))
    inner = model._orig_mod
    optimizer = torch.optim.AdamW(inner.parameters())
    stepped(inner, optimizer)
    names.add_root(model)

    readings = parameter_readings(names, [optimizer], reducer, 7, clock=clock, config=Config())
    found = {(r.site, r.port): r for r in readings}

    assert {site for site, _ in found} == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert {port for _, port in found} == {"value", "grad", "exp_avg", "exp_avg_sq", "step"}
    weight = found["0.weight", "value"]
    assert (weight.phase, weight.module, weight.shape, weight.step) == ("param", "Linear", (2, 3), 7)
    assert weight.summary == reducer.summary(inner[0].weight)
    assert found["0.weight", "grad"].phase == "grad"
    assert found["0.weight", "exp_avg_sq"].phase == "optimizer"
    assert found["0.weight", "exp_avg_sq"].summary == reducer.summary(optimizer.state[inner[0].weight]["exp_avg_sq"])
    assert found["0.weight", "step"].summary.sum == 2.0


def test_momentum_tied_names_and_a_parameter_outside_the_model(names, reducer, clock) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    stray = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [stray]}], lr=0.1, momentum=0.9)
    stepped(model, optimizer)
    names.add_root(model)

    found = {
        (r.site, r.port): r for r in parameter_readings(names, [optimizer], reducer, 0, clock=clock, config=Config())
    }

    assert found["0.weight", "momentum_buffer"].names == ("0.weight", "1.weight")
    assert ("1.weight", "value") not in found
    assert found["param_groups[1].params[0]", "value"].summary.n == 4


def test_reading_changes_nothing_and_globs_choose(names, reducer, clock) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    names.add_root(model)
    before = copy.deepcopy(optimizer.state_dict())

    readings = parameter_readings(names, [optimizer], reducer, 0, clock=clock, config=Config(exclude=("*bias",)))

    assert [(r.site, r.port) for r in readings] == [("weight", "value")]
    assert optimizer.state_dict() == before
    assert len(optimizer.state) == 0
