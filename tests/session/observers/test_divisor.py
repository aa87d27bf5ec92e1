"""More micro-batches than the loss of each is divided by are told; the end of the data, and what is zeroed, are not."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter
from tests.session.observers.test_laws import findings


def train(counts: list[int], divisor: float = 4.0, zero_after: int = 0, to_none: bool = True) -> None:
    """Updates of so many micro-batches; those of the last update are zeroed after the first `zero_after` of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for update, n in enumerate(counts):
        for microbatch in range(n):
            if update == len(counts) - 1 and microbatch == zero_after > 0:
                optimizer.zero_grad()
            loss = model(torch.randn(8, 6)).square().mean()
            (loss / divisor).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"counts": [4, 4, 4, 5, 4]}, [3]),
        ({"counts": [4, 4, 4, 5, 3, 4]}, [3]),
        ({"counts": [4, 4, 4, 5]}, []),
        ({"counts": [4, 4, 4, 5, 5, 5, 4]}, []),
        ({"counts": [4, 4, 4, 6, 4, 4, 6]}, [3]),
        ({"counts": [4, 4, 4, 5], "zero_after": 1}, []),
        ({"counts": [4, 4, 4, 3]}, []),
        ({"counts": [4, 5, 3, 6, 4, 5]}, []),
        ({"counts": [4, 4, 4, 5], "divisor": 2.0}, []),
        ({"counts": [4, 4, 4, 5], "to_none": False}, []),
        ({"counts": [1, 1, 1, 2], "divisor": 1.0}, []),
    ],
    ids=[
        "one left over", "before the end of the data", "nothing after it", "more from then on", "once for all",
        "zeroed", "the end of the data", "no habit", "another divisor",
        "filled with zeros", "one micro-batch",
    ],
)  # fmt: skip
def test_one_micro_batch_more_than_the_divisor_is_told(how: dict[str, object], told: list[int], tmp_path: Path) -> None:
    with contextlib.redirect_stderr(None), hypocenter.watch(out=str(tmp_path), audit="never"):
        train(**how)

    found = [each for each in findings(tmp_path) if each.code == "HC232"]
    assert [(each.step, each.severity) for each in found] == [(step, "warning") for step in told]
