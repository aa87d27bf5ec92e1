"""A real training in float16 whose logits grow: the forecast is made long before, and comes true."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.nouns import Finding
from hypocenter.record.reader import open_run

STEPS = 900


def train(out: Path, loss_of: str, seed: int) -> int | None:
    """Train under autocast; the step at which a logit overflowed, if one did."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    session = hypocenter.watch(model, optimizer, level="modules", out=str(out), replay=False)
    try:
        for step in range(STEPS):
            x = torch.randn(64, 16)
            y = (2 * x[:, :8]).argmax(1)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                logits = model(x)
            if not logits.isfinite().all():
                return step
            if loss_of == "margin":  # without a bound: nothing ever tells the logits to stop
                loss = logits.float().mean() - logits.float().gather(1, y[:, None]).mean()
            else:
                loss = torch.nn.functional.cross_entropy(logits.float(), y)
            loss.backward()
            optimizer.step()
    finally:
        session.close()
    return None


def forecasts(run: Path) -> list[Finding]:
    return [f for f in diagnose(open_run(run)).findings if f.code == "HC205"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_overflow_lies_in_the_interval_said_long_before(tmp_path: Path, seed: int) -> None:
    truth = train(tmp_path / "run", "margin", seed)

    (found,) = forecasts(tmp_path / "run")

    assert truth is not None
    assert (found.severity, found.site, found.phase, found.limit) == ("warning", "4", "forward", 65504.0)
    near, far = _ends(found)
    assert near <= truth <= far
    assert truth - found.step >= 50
    assert found.actual is not None
    assert math.log2(65504.0 / found.actual) >= 0.5


@pytest.mark.night
def test_a_loss_with_a_bound_is_silent(tmp_path: Path) -> None:
    truth = train(tmp_path / "run", "cross entropy", 0)

    assert truth is None
    assert forecasts(tmp_path / "run") == []


def _ends(found: Finding) -> tuple[int, int]:
    """`overflow is due between step 519 and step 1714 ...`"""
    words = found.why[1].split()
    near, far = (int(words[i + 1]) for i, word in enumerate(words) if word == "step")
    return near, far
