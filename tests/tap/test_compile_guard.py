"""What asks torch whether it compiles takes no reference that it does not give back, whatever torch it is."""

from __future__ import annotations

import ctypes
import sys

import pytest

from hypocenter.tap.compile_guard import inside_compiled_call, owned

MANY = 100_000
counts_none = pytest.mark.skipif(sys.version_info >= (3, 12), reason="None is not counted there")


def lost(get) -> int:
    """References to None that many calls took."""
    before = sys.getrefcount(None)
    for _ in range(MANY):
        get()
    return before - sys.getrefcount(None)


@counts_none
def test_asking_whether_torch_compiles_takes_no_reference_from_none():
    assert abs(lost(inside_compiled_call)) < MANY // 100


@counts_none
def test_what_is_handed_out_uncounted_is_counted():
    def careless() -> None:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(None))

    assert abs(lost(owned(careless))) < MANY // 100


@counts_none
def test_what_is_counted_is_left_alone():
    def careful() -> None:
        return None

    assert owned(careful) is careful
