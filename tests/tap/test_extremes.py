"""Largest magnitudes and exact counts, against the plain way."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.tap import extremes
from hypocenter.tap.extremes import counted, largest

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
VALUES = st.one_of(
    st.sampled_from([math.inf, -math.inf, math.nan, 0.0, -0.0]),
    st.floats(-60000, 60000, width=16, allow_nan=False, allow_infinity=False),
)
TENSORS = st.lists(
    st.tuples(st.lists(VALUES, min_size=1, max_size=20), st.sampled_from(FLOATS)), min_size=1, max_size=5
).map(lambda drawn: [torch.tensor(values, dtype=dtype) for values, dtype in drawn])


@given(TENSORS)
def test_counts_and_largest_finite_are_exact(tensors):
    for tensor, summary in zip(tensors, counted(tensors), strict=True):
        finite = tensor[tensor.isfinite()].double().abs()

        assert summary.n == tensor.numel()
        assert summary.n_nan == int(tensor.isnan().sum())
        assert summary.n_posinf == int((tensor == math.inf).sum())
        assert summary.n_neginf == int((tensor == -math.inf).sum())
        assert summary.absmax == (float(finite.max()) if finite.numel() else 0.0)


@given(TENSORS)
def test_largest_tells_whether_all_are_finite(tensors):
    for tensor, top in zip(tensors, largest(tensors), strict=True):
        if bool(tensor.isfinite().all()):
            assert float(top) == float(tensor.double().abs().max())
        else:
            assert not math.isfinite(float(top))


def test_long_tensors_are_counted_in_parts(monkeypatch):
    monkeypatch.setattr(extremes, "_CHUNK", 3)
    tensor = torch.tensor([math.inf, 1.0, 2.0, math.nan, -9.0, math.inf, -math.inf])

    (summary,) = counted([tensor])

    assert (summary.n_nan, summary.n_posinf, summary.n_neginf, summary.absmax) == (1, 2, 1, 9.0)


@pytest.mark.parametrize("tensor", [
    torch.complex(torch.tensor([1.0, math.nan]), torch.tensor([-3.0, math.inf])),
    torch.tensor([1.0, -3.0]).to(torch.float8_e4m3fn),
    torch.arange(-3.0, 3.0).reshape(2, 3).t(),
])  # fmt: skip
def test_odd_tensors(tensor):
    (summary,) = counted([tensor])

    assert summary.absmax == 3.0
    assert summary.n_nonfinite == (2 if tensor.is_complex() else 0)
    assert len(largest([tensor])) == 1


def test_nothing_is_nothing():
    assert counted([]) == []
    assert largest([]) == []
