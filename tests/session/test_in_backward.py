"""Optimizers that step inside a backward, from hooks on the accumulated gradients: as torchtune has them."""

import contextlib

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

N_STEPS = 5


def train(out, *, bad_step=-1, clips=False, **options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in net.parameters()}

    def step_and_let_go(p):
        if clips:
            nn.utils.clip_grad_norm_([p], 1.0)
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step_and_let_go)
    watching = contextlib.nullcontext() if out is None else hypocenter.watch(net, out=out, cure="off", **options)
    with watching:
        for step in range(N_STEPS):
            loss = net(torch.randn(8, 4)).square().mean()
            if step == bad_step:
                loss = torch.log(loss * 0.0 - 1.0)
            loss.backward()
    return [p.detach().clone() for p in net.parameters()]


@pytest.mark.parametrize("clips", [False, True])
def test_it_is_one_update_a_step_and_not_one_per_parameter(tmp_path, clips):
    plain = train(None, clips=clips)
    watched = train(tmp_path / "run", clips=clips)

    run = open_run(tmp_path / "run")
    steps = run.steps(0).to_pylist()
    assert [row["step"] for row in steps] == list(range(N_STEPS))
    assert [row["n_microbatches"] for row in steps] == [1] * N_STEPS
    assert {row["microbatch"] for row in run.table(0).to_pylist()} == {0}
    assert all(row["loss"] > 0 and row["grad_norm"] > 0 for row in steps)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert diagnose(run).status == "healthy"


def test_a_bad_step_is_found_and_named(tmp_path):
    train(tmp_path / "run", bad_step=2)

    first = diagnose(open_run(tmp_path / "run")).findings[0]
    assert (first.step, first.kind, first.severity) == (2, "nonfinite", "error")
