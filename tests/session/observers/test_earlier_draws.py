"""A seed in the middle of training makes later steps draw what earlier ones drew; what does not, or may be meant."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from tests.session.observers.test_laws import findings

N_STEPS, EVERY = 24, 6


class Job:
    """Denoises on a plane: noise is drawn outside of the model."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.saved: Any = None
        self.is_drawing = True

    def train(self, after: Callable[[Job, int], None], n_steps: int = N_STEPS) -> None:
        for step in range(n_steps):
            clean = torch.full((4, 2), 0.1 * step)
            noise = torch.randn(4, 2) if self.is_drawing else torch.ones(4, 2)
            self.optimizer.zero_grad()
            functional.mse_loss(self.model(clean + noise), noise).backward()
            self.optimizer.step()
            after(self, step)

    def sample(self) -> None:
        with torch.no_grad():
            self.model(torch.randn(4, 2))


def told(out: Path, after: Callable[[Job, int], None], *, is_drawing: bool = True) -> list[tuple[int, str]]:
    """Steps and lines."""
    job = Job()
    job.is_drawing = is_drawing
    with contextlib.redirect_stderr(None), hypocenter.watch(job.model, job.optimizer, out=str(out), audit="never"):
        job.train(after)
    return [(f.step, f.source.text if f.source else "") for f in findings(out) if f.code == "HC239"]


def sampled(job: Job, step: int) -> None:
    if step % EVERY == EVERY - 1:
        torch.manual_seed(1234)
        job.sample()


def test_a_sampler_that_seeds(tmp_path):
    assert told(tmp_path, sampled) == [(2 * EVERY + 2, "torch.manual_seed(1234)")]


def sampled_apart(job: Job, step: int) -> None:
    with torch.random.fork_rng():
        sampled(job, step)


def seeded_by_step(job: Job, step: int) -> None:
    torch.manual_seed(step % EVERY)


def gone_back(job: Job, step: int) -> None:
    """As after a spike of the loss, once more from what was saved."""
    if step == EVERY:
        job.saved = copy.deepcopy((job.model.state_dict(), job.optimizer.state_dict())), torch.get_rng_state()
    if step == 2 * EVERY:
        job.model.load_state_dict(job.saved[0][0])
        job.optimizer.load_state_dict(job.saved[0][1])
        torch.set_rng_state(job.saved[1])


def begun_anew(job: Job, step: int) -> None:
    """As one that looks for a learning rate does."""
    if step % EVERY == 0:
        job.saved = job.saved or copy.deepcopy(job.model.state_dict())
        job.model.load_state_dict(job.saved)
        torch.manual_seed(1)


def put_back(job: Job, step: int) -> None:
    """As for several updates from the same dropout, which are meant."""
    if step == 0:
        job.saved = torch.get_rng_state()
    if step % EVERY == 0:
        torch.set_rng_state(job.saved)


@pytest.mark.parametrize("after", [sampled_apart, seeded_by_step, gone_back, begun_anew, put_back])
def test_steps_that_draw_other_numbers_or_the_same_on_purpose(tmp_path, after):
    assert not told(tmp_path, after)


def test_training_that_draws_nothing(tmp_path):
    assert not told(tmp_path, sampled, is_drawing=False)


def test_models_one_after_another_that_each_begin_with_one_seed(tmp_path):
    first = Job()
    with (
        contextlib.redirect_stderr(None),
        hypocenter.watch(first.model, first.optimizer, out=str(tmp_path), audit="never"),
    ):
        for job in (first, Job(), Job()):
            torch.manual_seed(3)
            job.train(lambda *_: None, n_steps=EVERY)

    assert not [f for f in findings(tmp_path) if f.code == "HC239"]


def test_it_changes_nothing(tmp_path):
    plain = Job()
    plain.train(sampled)
    watched = Job()
    with contextlib.redirect_stderr(None), hypocenter.watch(watched.model, out=str(tmp_path), audit="never"):
        watched.train(sampled)

    assert all(torch.equal(a, b) for a, b in zip(plain.model.parameters(), watched.model.parameters(), strict=True))
