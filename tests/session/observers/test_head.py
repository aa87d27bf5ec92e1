"""Heads of two passes: compared only when they were given the same, and have the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.update_rows import HEAD_GAP
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


class Policy(nn.Module):
    def __init__(self, head: torch.dtype):
        super().__init__()
        torch.manual_seed(0)
        self.mix, self.lm_head = nn.Linear(8, 8), nn.Linear(8, 1000)
        nn.init.normal_(self.lm_head.weight, std=1.0)
        self.bfloat16()
        self.lm_head.to(head)

    def forward(self, x):
        return self.lm_head(torch.tanh(self.mix(x)).to(self.lm_head.weight.dtype)).float()


def gaps(out, policy, rollout, *, shift=0.0, is_sync=True, loss=lambda new, old: (new - old).exp().mean()):
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-1)
    with hypocenter.watch(out=str(out)):
        for _ in range(4):
            x = torch.randn(64, 8).bfloat16()
            with torch.no_grad():
                for theirs, ours in zip(rollout.parameters(), policy.parameters(), strict=True):
                    if is_sync:
                        theirs.copy_(ours)
                old = rollout(x + shift).log_softmax(-1)
            loss(policy(x).log_softmax(-1), old).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = open_run(out)
    assert run.run.warnings == ()
    return [r for r in run.readings(phase="optimizer") if r.port == HEAD_GAP]


def test_a_low_precision_head_against_a_float32_one(tmp_path):
    found = gaps(tmp_path / "run", Policy(torch.bfloat16), Policy(torch.float32))

    assert [r.step for r in found] == [1, 2, 3]
    assert all(1e-3 < r.summary.sum < 3e-2 for r in found)
    assert {(r.dtype, r.module, r.call) for r in found} == {("bfloat16", "ratio", 64)}


@pytest.mark.parametrize("head", [torch.bfloat16, torch.float32])
def test_heads_of_one_format_say_nothing(tmp_path, head):
    assert gaps(tmp_path / "run", Policy(head), Policy(head)) == []


def test_other_hidden_states_are_not_compared(tmp_path):
    assert gaps(tmp_path / "run", Policy(torch.bfloat16), Policy(torch.float32), shift=0.5) == []


def test_a_stale_rollout_is_not_compared(tmp_path):
    rollout = Policy(torch.float32)
    with torch.no_grad():
        rollout.lm_head.weight += 0.01

    assert gaps(tmp_path / "run", Policy(torch.bfloat16), rollout, is_sync=False) == []


def test_a_loss_without_a_ratio_is_told_apart(tmp_path):
    found = gaps(
        tmp_path / "run",
        Policy(torch.bfloat16),
        Policy(torch.float32),
        loss=lambda new, old: (new - old).square().sum(),
    )

    assert {r.module for r in found} == {""}
