"""A small training that goes wrong at one step, with or without sinks, and all that it may not change."""

from __future__ import annotations

import random
from pathlib import Path

import torch

import hypocenter

N_STEPS, BAD_STEP = 10, 6


def train(out: Path | None, *sinks: str, between=lambda step: None, level: str = "sentinel") -> list[object]:
    """Train and give losses, parameters, and the states of all random generators.

    Args:
        out: the run directory; None: without Hypocenter.
        between: called after each step.
    """
    torch.manual_seed(0)
    random.seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.25), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    handle = out and hypocenter.watch(model, optimizer, sinks=sinks, out=str(out), level=level)
    losses: list[float] = []
    for step in range(N_STEPS):
        x = torch.randn(4, 8) + random.random()
        if step == BAD_STEP:
            x[2, 3] = float("nan")
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        saved = [p.detach().clone() for p in model.parameters()]
        optimizer.step()
        if step == BAD_STEP:
            optimizer.state.clear()
            with torch.no_grad():
                for parameter, value in zip(model.parameters(), saved, strict=True):
                    parameter.copy_(value)
        losses.append(loss.item())
        between(step)
    if handle:
        handle.close()
    parameters = [p.detach().numpy().tobytes() for p in model.parameters()]
    return [str(losses), parameters, torch.get_rng_state().tolist(), random.getstate()]
