"""Formats without torch, against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from hypocenter.compare.weights import elements

EIGHT = [name for name in elements.STORED if name.startswith("float8")]
floats = some.arrays(np.float32, st.integers(1, 40), elements=st.floats(width=32))


@pytest.mark.parametrize("dtype", EIGHT)
def test_every_code_of_eight_bits_has_torchs_value(dtype):
    codes = torch.arange(256, dtype=torch.uint8)

    found = elements.values(codes.numpy(), dtype)

    np.testing.assert_array_equal(found, codes.view(getattr(torch, dtype)).double().numpy())


@given(values=floats, dtype=st.sampled_from(["bfloat16", "float16"]))
def test_a_cast_rounds_as_torch_does(values, dtype):
    found = elements.cast(values, "float32", dtype)

    wanted = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.int16).numpy()
    nan = np.isnan(values)
    np.testing.assert_array_equal(found.view(np.int16)[~nan], wanted[~nan])
    assert np.isnan(elements.values(found, dtype)[nan]).all()


@given(values=floats, dtype=st.sampled_from(["float8_e4m3fn", "float8_e5m2"]))
def test_a_cast_to_eight_bits_rounds_as_torch_does_within_range(values, dtype):
    values = values[np.abs(values) <= 448]

    found = elements.cast(values, "float32", dtype)

    wanted = torch.from_numpy(values).to(getattr(torch, dtype)).view(torch.uint8).numpy()
    np.testing.assert_array_equal(found, wanted)


@given(values=floats, dtype=st.sampled_from(["float32", "bfloat16", "float16"]))
def test_ordinals_are_in_the_order_of_the_numbers(values, dtype):
    bits = elements.cast(values[np.abs(values) < 6e4], "float32", dtype)

    numbers, places = elements.values(bits, dtype), elements.ordinals(bits, dtype)

    order = np.argsort(places, kind="stable")
    assert (np.diff(numbers[order]) >= 0).all()
    assert ((np.diff(places[order]) == 0) == (np.diff(numbers[order]) == 0)).all()
