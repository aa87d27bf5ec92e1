"""A small float16 training loop with a GradScaler, and what the rules of misuse say of a recording of one."""

from __future__ import annotations

import functools

import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import found_in
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

START = 1024.0  # low enough that this model overflows at no step


class Program:
    """A small float16 training loop; each fault or good habit overrides `step`."""

    init_scale = START
    dtype = torch.float16
    n_steps = 8
    on_finding = "continue"
    optimizer = staticmethod(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2))

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1))
        self.opt = self.optimizer(self.model.parameters())
        self.scaler = torch.amp.GradScaler("cpu", init_scale=self.init_scale)
        self.centers = torch.randn(64, 6)
        self.now = 0

    def loss(self) -> torch.Tensor:
        x = self.centers[torch.randperm(64)[:16]]
        with torch.autocast("cpu", self.dtype):
            return nn.functional.mse_loss(self.model(x).squeeze(-1).float(), x.sum(-1))

    def step(self) -> None:
        self.scaler.scale(self.loss()).backward()
        self.scaler.step(self.opt)
        self.scaler.update()

    def run(self) -> list[torch.Tensor]:
        for now in range(self.n_steps):
            self.now = now
            self.opt.zero_grad()
            self.step()
        return [p.detach().clone() for p in self.model.parameters()]


@functools.cache
def trained() -> Program:
    """What a checkpoint holds."""
    program = Program()
    program.run()
    return program


def found(program: type[Program], out) -> list[tuple[str, str, int]]:
    trained()
    with hypocenter.watch(out=str(out), on_finding=program.on_finding):
        program().run()
    return [(f.code, f.severity, f.step) for f in findings(out)]


def findings(out) -> list[Finding]:
    """What the rules of this group say of a recording."""
    return [f for f in found_in(open_run(out)).findings if f.code.startswith("HC21")]
