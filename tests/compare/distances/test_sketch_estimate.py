"""The error bar of a sketch holds the true error, for noise as for rank-one differences."""

from __future__ import annotations

import numpy as np
import pytest

from hypocenter.compare.distances.columns import estimate
from hypocenter.summary.sketch import sketch


def _pairs(kind: str, n: int = 200):
    random = np.random.default_rng(3)
    for _ in range(n):
        rows, columns = random.integers(2, 90, 2)
        a = random.standard_normal((rows, columns)).astype(np.float32)
        u, v = random.standard_normal((rows, 1)), random.standard_normal((1, columns))
        d = {
            "noise": lambda a=a: random.standard_normal(a.shape),
            "rank one": lambda u=u, v=v: u @ v,
            "one row": lambda a=a: np.eye(a.shape[0])[:, :1] * random.standard_normal(a.shape[1]),
            "one element": lambda a=a: np.eye(*a.shape)[:, :1] @ np.eye(1, a.shape[1]),
            "scale": lambda a=a: a,
        }[kind]()
        yield a, (a + 0.01 * d / np.linalg.norm(d) * np.linalg.norm(a)).astype(np.float32)


@pytest.mark.parametrize("kind", ["noise", "rank one", "one row", "one element", "scale"])
def test_the_interval_holds_the_true_relative_error(kind):
    pairs = list(_pairs(kind))
    true = np.array([np.linalg.norm(b.astype(float) - a) / np.linalg.norm(a.astype(float)) for a, b in pairs])
    norms = np.array([np.linalg.norm(a.astype(float)) for a, _ in pairs])

    found = estimate(np.stack([sketch(a) for a, _ in pairs]), np.stack([sketch(b) for _, b in pairs]), norms)

    held = (found.low <= true) & (true <= found.high)
    assert held.mean() >= 0.97
    assert np.median(np.abs(found.relative / true - 1.0)) < 0.35


def test_the_interval_is_narrow_for_noise_and_wide_for_rank_one():
    widths = {}
    for kind in ("noise", "rank one"):
        pairs = list(_pairs(kind, 60))
        norms = np.array([np.linalg.norm(a) for a, _ in pairs])
        found = estimate(np.stack([sketch(a) for a, _ in pairs]), np.stack([sketch(b) for _, b in pairs]), norms)
        widths[kind] = float(np.median(found.high / found.low))

    assert widths["noise"] < 1.9
    assert widths["rank one"] > 2.0


def test_equal_sketches_are_at_distance_zero_and_a_scale_is_found():
    a = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    one = np.stack([sketch(a), sketch(a)])
    two = np.stack([sketch(a), sketch(a * 3)])

    found = estimate(one, two, np.full(2, np.linalg.norm(a)))

    assert (found.relative[0], found.low[0], found.high[0]) == (0.0, 0.0, 0.0)
    assert found.scale[1] == pytest.approx(3.0, rel=1e-5)
    assert found.cosine[1] == pytest.approx(1.0, abs=1e-6)
