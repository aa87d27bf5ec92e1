"""Rules about the data of MindSpore programs: each fires on its fault and is silent on the twin."""

from __future__ import annotations

import sys
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

sys.path.insert(0, str(Path(__file__).parent))
from rules_programs import dense, findings  # isort: skip

N_ROWS, N_BATCH = 256, 8


def passes(out, *, given, n_steps=48, dtype=ms.float32):
    """A loop over batches of (inputs, labels) of a small data set, `given(step, rows)` -> what the step gets."""
    random = np.random.default_rng(0)
    inputs = random.normal(size=(N_ROWS, 8)).astype(np.float32)
    labels = random.integers(0, 4, N_ROWS).astype(np.int32)
    order = np.concatenate([random.permutation(N_ROWS) for _ in range(2)])
    net = dense()
    optimizer = nn.SGD(net.trainable_params(), 1e-2)

    def loss(x, y):
        return ops.cross_entropy(net(x.astype(ms.float32)), y)

    def loop():
        gradient = ms.value_and_grad(loss, None, optimizer.parameters)
        for step in range(n_steps):
            at = order[step * N_BATCH : (step + 1) * N_BATCH]
            x, y = given(step, inputs[at], labels[at])
            _, grads = gradient(Tensor(x).astype(dtype), Tensor(y))
            optimizer(grads)

    return findings(out, net, loop)


def as_it_is(step, x, y):
    return x, y


@pytest.mark.night
def test_hc411_a_batch_comes_again(tmp_path):
    kept = []

    def stale(step, x, y):
        kept.append((x, y))
        return kept[-2] if step == 44 else (x, y)

    found = passes(tmp_path / "stale", given=stale)["HC411"]

    assert (found.step, found.title) == (44, "the batch is the one of step 43 again")
    assert passes(tmp_path / "healthy", given=as_it_is) == {}
    assert passes(tmp_path / "bfloat16", given=as_it_is, dtype=ms.bfloat16) == {}


def test_hc412_a_field_becomes_constant(tmp_path):
    def blank(step, x, y):
        return (x, np.zeros_like(y)) if step == 40 else (x, y)

    found = passes(tmp_path / "blank", given=blank)["HC412"]

    assert (found.step, found.port) == (40, "in[1]")
    assert "HC412" not in passes(tmp_path / "healthy", given=as_it_is)


@pytest.mark.night
def test_hc413_labels_of_other_rows(tmp_path):
    def apart(step, x, y):
        return (x, np.roll(y, 1)) if step >= 40 else (x, y)

    found = passes(tmp_path / "apart", given=apart, n_steps=64)["HC413"]

    assert (found.step, found.port) == (40, "in[1]")
    assert "HC413" not in passes(tmp_path / "healthy", given=as_it_is, n_steps=64)
