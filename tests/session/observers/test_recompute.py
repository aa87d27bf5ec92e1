"""What checkpointing computes a second time, against what forward computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import hypocenter
from hypocenter.detect.microbatch_rows import RECOMPUTE_GAP, RECOMPUTE_IN
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

torch.set_num_threads(1)


class Program:
    """Two checkpointed blocks with dropout."""

    p, preserve, reentrant, n_micro, noise = 0.2, False, False, 1, 0.0

    def __init__(self, **traits) -> None:
        vars(self).update(traits)
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(self.p), nn.Linear(16, 16)) for _ in range(2)
        )
        self.model = nn.ModuleDict({"blocks": self.blocks})
        self.model.forward = self.forward

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant, preserve_rng_state=self.preserve)
        return x * (1 + self.noise)

    def run(self, n_steps=4):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        for _ in range(n_steps):
            for _ in range(self.n_micro):
                self.model(torch.randn(8, 16).requires_grad_()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach().clone() for p in self.model.parameters()]


def codes(out) -> list[str]:
    return [f.code for f in diagnose(open_run(out)).findings]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("n_micro", [1, 3])
def test_a_mask_drawn_anew_is_seen_at_the_dropout(tmp_path, reentrant, n_micro):
    with hypocenter.watch(out=str(tmp_path / "run")):
        Program(reentrant=reentrant, n_micro=n_micro).run()

    found = open_run(tmp_path / "run").readings(phase="optimizer")
    rows = {r.port: r for r in found if r.step == 1}
    assert rows[RECOMPUTE_GAP].site == "blocks.0.2"
    assert rows[RECOMPUTE_GAP].summary.sum > 0.3
    assert rows[RECOMPUTE_IN].summary.sum == 0.0
    assert codes(tmp_path / "run") == ["HC336"]


@pytest.mark.slow
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("traits", [{"preserve": True}, {"p": 0.0}, {"preserve": True, "n_micro": 2}])
def test_what_is_recomputed_alike_is_silent(tmp_path, reentrant, traits):
    with hypocenter.watch(out=str(tmp_path / "run")):
        Program(reentrant=reentrant, **traits).run()

    assert codes(tmp_path / "run") == []
    assert not [r for r in open_run(tmp_path / "run").readings(phase="optimizer") if r.port == RECOMPUTE_GAP]


def test_weights_are_the_same_bits_and_hooks_come_off(tmp_path):
    plain = Program().run()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = Program()
        bits = watched.run()

    assert all(torch.equal(a, b) for a, b in zip(plain, bits, strict=True))
    assert all(not m._forward_hooks for m in watched.model.modules())


def test_a_program_without_checkpointing_gets_no_hooks(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inner: list[int] = []

    with hypocenter.watch(out=str(tmp_path / "run")):
        for _ in range(4):
            model(torch.randn(8, 4)).mean().backward()
            optimizer.step()
            inner.append(sum(len(m._forward_hooks) for m in model))

    assert inner == [0, 0, 0, 0]


def test_a_module_called_twice_is_not_compared(tmp_path):
    program = Program()
    program.blocks[1] = program.blocks[0]

    with hypocenter.watch(out=str(tmp_path / "run")):
        program.run()

    assert codes(tmp_path / "run") == []


def test_rounding_of_another_order_of_addition_is_silent(tmp_path):
    """A recompute that is off by what bfloat16 kernels without a fixed order are off by."""

    class Wobbles(nn.Module):
        def forward(self, x):
            return x * (1 + 4e-3 * (torch._C._current_graph_task_id() != -1))

    program = Program(p=0.0)
    for block in program.blocks:
        block[2] = Wobbles()

    with hypocenter.watch(out=str(tmp_path / "run")):
        program.run()

    assert codes(tmp_path / "run") == []
