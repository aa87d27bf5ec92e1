"""The table of formats against what NumPy and torch know."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hypocenter.errors import UnknownNameError
from hypocenter.summary import FORMATS, find_format


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_numbers_agree_with_torch(name: str) -> None:
    form, info = FORMATS[name], torch.finfo(getattr(torch, name))

    assert (form.max, form.smallest_normal, form.eps) == (info.max, info.smallest_normal, info.eps)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_the_smallest_subnormal_agrees_with_numpy(name: str) -> None:
    assert FORMATS[name].smallest_subnormal == float(np.finfo(name).smallest_subnormal)


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"float64"}))
def test_the_smallest_subnormal_is_the_bit_pattern_one(name: str) -> None:
    dtype = getattr(torch, name)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[dtype.itemsize]

    assert FORMATS[name].smallest_subnormal == torch.tensor([1], dtype=bits).view(dtype).double().item()


@pytest.mark.parametrize("name", ["float16", "fp16", "torch.float16", "half"])
def test_a_format_has_several_names(name: str) -> None:
    assert find_format(name) is FORMATS["float16"]


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as refused:
        find_format("float12")

    assert str(refused.value) == (
        "error[unknown-name]: unknown floating-point format 'float12'\n"
        "   = fix: use one of float64, float32, bfloat16, float16, float8_e4m3fn, float8_e5m2"
    )
