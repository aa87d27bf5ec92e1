"""Healthy Transformers models: no finding of warning or above at any level, and not one bit changed.

Twelve of these make infinities or NaN in a healthy step (masks, T5's log of 0, routers).
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from by_day import first_of_each

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

import models
import torch

import hypocenter

LEVELS = ("sentinel", "modules", "ops")
CASES = [
    (name, attention, level)
    for name, attention in models.CASES
    for level in LEVELS
    if level == "ops" or attention == models.ZOO[name].attention[-1]  # which holds the other two in it
]


@dataclass(frozen=True, kw_only=True)
class Trained:
    """All that a training run leaves behind."""

    losses: torch.Tensor
    parameters: dict[str, torch.Tensor]
    moments: list[torch.Tensor]
    random_state: torch.Tensor


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def train(name: str, attention: str, level: str | None = None, out: Path | None = None) -> Trained:
    """Three steps with AdamW, clipping and a schedule, dropout on; watched when a level is given."""
    model = models.ZOO[name].make(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.3, total_iters=3)
    handle = None if level is None else hypocenter.watch(model, optimizer, level=level, out=str(out))
    losses = []
    for batch in models.batches(name):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    if handle is not None:
        handle.close()
    return Trained(
        losses=torch.stack(losses),
        parameters={n: p.detach().clone() for n, p in model.named_parameters()},
        moments=[v for state in optimizer.state.values() for v in state.values()],
        random_state=torch.get_rng_state(),
    )


@pytest.fixture(scope="module")
def plain():
    """The run without Hypocenter, made once per model and attention."""
    made: dict[tuple[str, str], Trained] = {}

    def get(name: str, attention: str) -> Trained:
        if (name, attention) not in made:
            made[name, attention] = train(name, attention)
        return made[name, attention]

    return get


def kind(case: tuple[str, str, str]) -> tuple[str, str]:
    """What a model eats, and the level; of those below `ops`, which it holds in it, the level alone."""
    name, _, level = case
    return (models.ZOO[name].batch if level == "ops" else "", level)


@pytest.mark.parametrize(("name", "attention", "level"), first_of_each(CASES, kind))
def test_silent_and_bit_identical(name: str, attention: str, level: str, plain, tmp_path: Path) -> None:
    expected = plain(name, attention)

    found = train(name, attention, level, tmp_path / "run")

    assert expected.losses.isfinite().all()
    assert torch.equal(found.losses, expected.losses)
    assert torch.equal(found.random_state, expected.random_state)
    assert found.parameters.keys() == expected.parameters.keys()
    for parameter, value in expected.parameters.items():
        assert torch.equal(found.parameters[parameter], value), parameter
    assert all(torch.equal(a, b) for a, b in zip(found.moments, expected.moments, strict=True))
    assert alarms(tmp_path / "run") == []


def test_there_are_enough_models() -> None:
    """The promise is at least 17, among them encoders, decoders, both, mixtures of experts, vision and speech."""
    assert len(models.ZOO) >= 17
    assert {recipe.batch for recipe in models.ZOO.values()} == {"causal", "seq2seq", "image", "speech"}


def alarms(out: Path) -> list[str]:
    """Findings of warning or above, one line each."""
    from hypocenter.diagnose.diagnosis import diagnose
    from hypocenter.record.reader import open_run

    diagnosis = diagnose(open_run(out))
    assert diagnosis.n_steps == models.STEPS
    return [f"{f.code} {f.site} {f.title}" for f in diagnosis.findings if f.severity in ("error", "warning")]
