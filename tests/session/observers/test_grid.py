"""Low formats as grids: the distance between neighbours is the one that torch rounds by."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.session.observers.grid import GRIDS, is_low, rounded, ulp

LARGEST = {dtype: torch.finfo(dtype).max for dtype in GRIDS}


@given(data=st.data(), dtype=st.sampled_from(list(GRIDS)))
def test_more_than_half_an_ulp_moves_and_less_does_not(data, dtype):
    drawn = data.draw(st.floats(0.0, LARGEST[dtype] / 4))
    value = torch.tensor(drawn, dtype=torch.float64).to(torch.float32).to(dtype).to(torch.float64)

    step = ulp(value, dtype)

    assert float((value + 0.51 * step).to(torch.float32).to(dtype)) == float(value + step)
    assert float((value + 0.49 * step).to(torch.float32).to(dtype)) == float(value)


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, torch.bfloat16, 2**-7),
        (0.999, torch.float16, 2**-11),
        (0.0, torch.float16, 2**-24),
        (-3.0, torch.bfloat16, 2**-6),
    ],
)
def test_known_distances(value, dtype, expected):
    assert float(ulp(torch.tensor(value, dtype=torch.float64), dtype)) == expected


def test_rounded():
    assert rounded(0.999, torch.bfloat16) == 1.0
    assert rounded(1e-8, torch.float16) == 0.0
    assert rounded(0.75, torch.bfloat16) == 0.75


def test_what_is_low():
    assert is_low(torch.ones(1, dtype=torch.bfloat16))
    assert not is_low(torch.ones(1))
    assert not is_low(torch.ones(1, dtype=torch.int8))
    assert not is_low(None)
