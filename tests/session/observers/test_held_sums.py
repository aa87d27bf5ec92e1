"""Gradients that a program adds up in tensors of its own, as means, and does not clear after the update."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings

N = 4  # micro-batches


@pytest.mark.parametrize(("keeps", "codes"), [(1.0, [("HC232", 1)]), (0.0, []), (0.5, [])])
def test_sums_that_are_kept_are_told(keeps: float, codes: list[tuple[str, int]], tmp_path: Path) -> None:
    """Who keeps a part of them means it: that is momentum."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held = [torch.zeros_like(p) for p in model.parameters()]
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path)):
        for _ in range(6):
            for _ in range(N):
                model(torch.randn(8, 6)).square().mean().backward()
                for total, p in zip(held, model.parameters(), strict=True):
                    assert p.grad is not None
                    total += p.grad / N
                    p.grad = None
            for total, p in zip(held, model.parameters(), strict=True):
                p.grad = total.clone()
            optimizer.step()
            optimizer.zero_grad()
            for total in held:
                total *= keeps

    assert [(each.code, each.step) for each in findings(tmp_path) if each.severity != "note"] == codes
