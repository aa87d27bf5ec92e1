"""What is kept of an update's parameters stays, although a clip has them in another order than the optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.record.norm_rows import NormTemplate


def test_rows_are_laid_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[NormTemplate] = []
    make = NormTemplate.__init__

    def counted(self: NormTemplate, *rest: object) -> None:
        made.append(self)
        make(self, *rest)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(NormTemplate, "__init__", counted)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8))
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}])

    with hypocenter.watch(model, optimizer, audit="never", out=str(tmp_path / "run")):
        for _ in range(12):
            model(torch.randn(4, 8)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    assert 1 <= len(made) <= 2
