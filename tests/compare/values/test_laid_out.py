from __future__ import annotations

import numpy as np
import pytest

from hypocenter.compare.comparison import Layout
from hypocenter.compare.values.depth import laid_out
from hypocenter.compare.values.tensor_file import Stored


def stored(array):
    return Stored(dtype="float64", raw=np.ascontiguousarray(array, np.float64))


X = np.arange(24.0).reshape(4, 6)
PARTS = [X[:2], X[2:3], X[3:]]


@pytest.mark.parametrize(
    ("layout", "baseline", "candidate"),
    [
        (Layout(), [X], [X]),
        (Layout(kind="transposed"), [X], [X.T]),
        (Layout(kind="swapped", swapped=True), [X.reshape(2, 3, 4)], [X.reshape(2, 3, 4).swapaxes(0, 1)]),
        (Layout(kind="reshaped"), [X], [X.reshape(2, 2, 6)]),
        (Layout(kind="padded", dim=0, sizes=(4,)), [X], [np.pad(X, ((0, 3), (0, 0)))]),
        (Layout(kind="padded", dim=1, sizes=(6,)), [np.pad(X, ((0, 0), (0, 2)))], [X]),
        (Layout(kind="concatenated", dim=0, sizes=(2, 1, 1)), PARTS, [X]),
        (Layout(kind="concatenated", dim=1, sizes=(2, 4)), [X], [X[:, :2], X[:, 2:]]),
        (Layout(kind="copies"), [X, X], [X]),
    ],
)
def test_parts_lie_alike(layout, baseline, candidate):
    found = laid_out(layout, [stored(one) for one in baseline], [stored(one) for one in candidate])

    assert found
    for a, b in found:
        np.testing.assert_array_equal(a.values(), b.values())


def test_query_groups_are_taken_apart():
    q, k, v = np.arange(16.0).reshape(8, 2), np.arange(16.0, 24.0).reshape(4, 2), np.arange(24.0, 32.0).reshape(4, 2)
    groups = [np.concatenate([q[4 * i : 4 * i + 4], k[2 * i : 2 * i + 2], v[2 * i : 2 * i + 2]]) for i in range(2)]
    layout = Layout(kind="interleaved", dim=0, sizes=(8, 4, 4), groups=2)

    found = laid_out(layout, [stored(one) for one in (q, k, v)], [stored(np.concatenate(groups))])

    assert found
    for a, b in found:
        np.testing.assert_array_equal(a.values(), b.values())


def test_no_answer_where_shapes_do_not_fit_or_the_order_is_not_known():
    assert laid_out(Layout(), [stored(X)], [stored(X.T)]) is None
    assert laid_out(Layout(kind="concatenated", dim=0, sizes=(3, 3)), [stored(X)] * 2, [stored(X)]) is None
    unknown = Layout(kind="interleaved", dim=0, sizes=(2, 2), groups=0)
    assert laid_out(unknown, [stored(X[:2]), stored(X[2:])], [stored(X)]) is None
