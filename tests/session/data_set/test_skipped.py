"""A loader that skips batches to resume is read once; who reads it again leaves these batches out of each pass."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from accelerate import skip_first_batches
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hypocenter
from tests.session.observers.test_laws import findings


@pytest.mark.parametrize(("n_again", "found"), [(2, [("warning", 3)]), (1, []), (0, [])])
def test_batches_that_are_skipped_in_each_pass(n_again: int, found: list[tuple[str, int]], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(40, 3)), batch_size=8, shuffle=True)
    resumed = skip_first_batches(loader, 2)
    with contextlib.redirect_stderr(None), hypocenter.watch(model, optimizer, out=str(tmp_path), relations="never"):
        for each in [*[resumed] * n_again, *[loader] * (3 - n_again)]:
            for (x,) in each:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()

    told = [f for f in findings(tmp_path) if f.code == "HC415"]
    assert [(f.severity, f.step) for f in told] == found
    assert all(f.title == "each pass over TensorDataset leaves out its first 2 batches" for f in told)
