"""Loops over parameters that libraries write: what a tensor is costs no more than the call itself."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import hypocenter
from tests.session.test_calls_of_a_step import calls

N = 200


def test_what_a_parameter_is_costs_one_call(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    many = [nn.Parameter(torch.ones(2)) for _ in range(N)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(*, is_asked: bool) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        if is_asked:
            sum(p.numel() for p in many if p.requires_grad and p.shape and p.device.type == "cpu")
        optimizer.step()

    with hypocenter.watch(model, optimizer, audit="never", out=str(tmp_path / "run")):
        for _ in range(12):
            step(is_asked=True)
        without, asked = calls(lambda: step(is_asked=False)), calls(lambda: step(is_asked=True))

    n_asked = 4 * N
    assert asked[0] - without[0] <= n_asked + N + 10  # the mode's own call of each, and the generator's
