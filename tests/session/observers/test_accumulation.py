"""Gradient accumulators against the float64 sum of the same micro-batch gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.update_rows import ACCUMULATED, ADDITION_LOST, SITE, share
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


def train(gradients, *, n_steps=3, between=lambda p: None, dtype=torch.bfloat16, zero=True):
    """One weight whose micro-batch gradients are the given ones."""
    weight = nn.Linear(8, 1, bias=False).to(dtype)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.0)
    for _ in range(n_steps):
        for gradient in gradients:
            weight(gradient.to(dtype)[None]).sum().backward()
            between(weight.weight)
        optimizer.step()
        optimizer.zero_grad(set_to_none=zero)


def rows(out) -> dict:
    found = open_run(out).readings(phase="optimizer")
    return {(r.step, r.port): r for r in found if r.port in (ACCUMULATED, ADDITION_LOST) and r.site == SITE}


@pytest.mark.night
@pytest.mark.parametrize("zero", [False, True])
def test_512_equal_gradients_come_out_at_256(tmp_path, zero):
    with hypocenter.watch(out=str(tmp_path / "run")):
        train([torch.ones(8)] * 512, n_steps=2, zero=zero)

    found = rows(tmp_path / "run")
    assert {step for step, _ in found} == {1}  # the first step tells how many there are
    assert found[1, ACCUMULATED].summary.sum == 0.5
    assert found[1, ACCUMULATED].call == 512
    n = found[1, ADDITION_LOST].summary.n
    assert n in (511 * 8, 512 * 8)
    assert share(found[1, ADDITION_LOST]) == pytest.approx(0.5, abs=0.01)


@pytest.mark.night
def test_random_gradients_are_added_up_well(tmp_path):
    random = torch.Generator().manual_seed(0)
    with hypocenter.watch(out=str(tmp_path / "run")):
        train([torch.randn(8, generator=random) for _ in range(200)])

    assert rows(tmp_path / "run")[1, ACCUMULATED].summary.sum == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("n_microbatches", [1, 4, 7])
def test_few_micro_batches_are_not_looked_at(tmp_path, n_microbatches):
    with hypocenter.watch(out=str(tmp_path / "run")):
        train([torch.ones(8)] * n_microbatches)

    assert rows(tmp_path / "run") == {}


def test_float32_gradients_are_not_looked_at(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        train([torch.ones(8)] * 20, dtype=torch.float32)

    assert rows(tmp_path / "run") == {}


def take_away(parameter):
    parameter.main_grad = getattr(parameter, "main_grad", 0) + parameter.grad.float()
    parameter.grad = None


def scale(parameter):
    parameter.grad *= 0.5


@pytest.mark.parametrize("between", [take_away, scale])
def test_gradients_that_the_program_changes_in_between_are_not_judged(tmp_path, between):
    with hypocenter.watch(out=str(tmp_path / "run")):
        train([torch.ones(8)] * 20, between=between)

    assert rows(tmp_path / "run") == {}
    assert open_run(tmp_path / "run").run.warnings == ()
