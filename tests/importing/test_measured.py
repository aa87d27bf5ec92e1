"""importing.measured: a file's values by parts give what they give as a whole."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hypocenter.importing.tensor_file import measure, open_tensor
from hypocenter.summary.reducers.numpy import summarize

_DTYPES = st.sampled_from(["float16", "float32", "float64", "int32", "bool"])
_SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=7)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("values") / "x.npy"


@settings(deadline=None, max_examples=60)
@given(array=arrays.arrays(_DTYPES, _SHAPES))
def test_it_is_to_the_bit_what_the_reducer_gives(file: Path, array: np.ndarray) -> None:
    np.save(file, array)

    found = measure(open_tensor(file))

    assert found.summary == summarize(array, sketch=array.dtype.kind == "f")
    assert found.crc32 == zlib.crc32(array.tobytes())


@settings(deadline=None, max_examples=60)
@given(array=arrays.arrays(st.just("float32"), _SHAPES, elements=st.integers(-8, 8)), at_once=st.integers(1, 9))
def test_parts_add_up(file: Path, array: np.ndarray, at_once: int) -> None:
    np.save(file, array)

    by_parts = measure(open_tensor(file), at_once=at_once)

    assert by_parts.summary == measure(open_tensor(file)).summary  # whole numbers: sums are exact in any order
    assert by_parts.crc32 == zlib.crc32(array.tobytes())


@pytest.mark.parametrize("order", ["F", ">"])
def test_the_checksum_is_of_rows_in_this_machines_order(file: Path, order: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.save(file, np.asfortranarray(array) if order == "F" else array.astype(">f4"))

    assert measure(open_tensor(file)).crc32 == zlib.crc32(array.tobytes())
