"""A project of its own: what docs/relations.md says of unit tests, in a fresh process."""

from __future__ import annotations

import os
import sys

import warm

CONFTEST = """
import hypocenter

pytest_plugins = ["hypocenter.testing"]


@hypocenter.relation
def order_of_things(inputs):
    return {"x": inputs["x"].flip(1)}
"""

TESTS = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy


class Set(nn.Module):
    def __init__(self, mixes=False, counts=False):
        super().__init__()
        self.inner, self.head, self.mixes, self.counts = nn.Linear(4, 8), nn.Linear(8, 3), mixes, counts

    def forward(self, x):
        h = self.inner(x).relu()
        h = h - h.mean(0) if self.mixes else h
        return self.head((h * torch.arange(h.shape[1])[:, None] if self.counts else h).sum(1))


X, Y = torch.randn(6, 5, 4), torch.arange(6) % 3


def test_healthy(check_relations):
    assert {"samples", "split", "order_of_things"} <= set(check_relations(Set(), X, cross_entropy, labels=Y).held)


def test_mixes(check_relations):
    check_relations(Set(mixes=True), X, cross_entropy, labels=Y)


def test_counts(check_relations):
    check_relations(Set(counts=True), X, cross_entropy, labels=Y)
"""


def test_a_fresh_project(tmp_path):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_model.py").write_text(TESTS)

    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = warm.run(command, env=os.environ, cwd=tmp_path, timeout=300)

    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "RelationBroken: samples: other samples replaced" in done.stdout
    assert "RelationBroken: order_of_things: x changed as order_of_things says" in done.stdout
