import enum
import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.session.facts.plain import NOT_PLAIN, function_name, place_of, plain


class Backend(enum.Enum):
    flash = 1


class Meters(float):
    def __float__(self):
        raise AssertionError("called")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (None, None),
        (True, True),
        (1 << 70, str(1 << 70)),
        (math.nan, "nan"),
        (Meters(2.5), 2.5),
        (Backend.flash, "flash"),
        (torch.bfloat16, "bfloat16"),
        (torch.Size([2, 3]), [2, 3]),
        (torch.tensor(3), 3),
        (np.float32(0.5), 0.5),
        ({"a": 1, "b": object()}, {"a": 1}),
    ],
)
def test_values_that_json_can_hold(value, kept):
    assert plain(value) == kept
    assert type(plain(value)) is type(kept)


@pytest.mark.parametrize("value", [object(), torch.zeros(2), [object()], list(range(100)), "x" * 1000, 1j, {1: 2}])
def test_data_and_objects_are_left_out(value):
    assert plain(value) is NOT_PLAIN


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=30))
def test_what_is_kept_survives_json(value):
    import msgspec

    kept = plain(value)

    assert kept is NOT_PLAIN or msgspec.json.decode(msgspec.json.encode(kept)) == kept


def test_functions_have_torchs_public_name():
    assert function_name(torch.nn.functional.gelu) == "torch.nn.functional.gelu"
    assert function_name(torch.tanh) == "torch.tanh"
    assert function_name(functools.partial(torch.nn.LayerNorm, eps=1e-6)).endswith("LayerNorm(eps=1e-06)")
    assert function_name(3) == ""


def test_the_place_of_a_function_is_inside_its_decorators():
    def inner():
        return None

    @functools.wraps(inner)
    def outer():
        return inner()

    assert place_of(outer) == f"test_plain.py:{inner.__code__.co_firstlineno}"
