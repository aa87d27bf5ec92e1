"""Grids as bytes."""

from __future__ import annotations

import base64
import gzip

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hypocenter.report.page.payload import HIGHEST, MISSING, NOT_FINITE, PER_BIT, ZERO, encode, pack

MAGNITUDES = st.one_of(st.just(0.0), st.just(np.inf), st.just(np.nan), st.floats(min_value=1e-300, max_value=1e300))


def decode(codes: np.ndarray, top: list[float]) -> np.ndarray:
    """Return what the page shows for each cell, as its decoder in app.js does."""
    value = 2.0 ** (np.asarray(top)[:, None] + (codes.astype(np.float64) - HIGHEST) / PER_BIT)
    value = np.where(codes == ZERO, 0.0, value)
    return np.where(codes == MISSING, np.nan, np.where(codes == NOT_FINITE, np.inf, value))


@given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=MAGNITUDES))
def test_decoded_cells_are_within_an_eighth_of_a_bit_or_below_the_rows_range(absmax: np.ndarray) -> None:
    codes, top = encode(absmax)
    seen = decode(codes, top)

    assert (np.isnan(seen) == np.isnan(absmax)).all()
    assert (np.isinf(seen) == np.isinf(absmax)).all()
    assert ((seen == 0) == (absmax == 0)).all()
    plain = np.isfinite(absmax) & (absmax > 0)
    ratio = np.abs(np.log2(np.where(plain, seen, 1)) - np.log2(np.where(plain, absmax, 1)))
    floor = np.broadcast_to(np.asarray(top)[:, None] - 63, absmax.shape)
    in_range = plain & (np.log2(np.where(plain, absmax, 1.0)) >= floor)
    assert (ratio[in_range] <= 0.125 + 1e-9).all()
    assert (seen[plain & ~in_range] >= absmax[plain & ~in_range]).all()


@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=20)))
def test_packed_codes_unpack_as_the_page_does(codes: np.ndarray) -> None:
    flat = bytearray(gzip.decompress(base64.b64decode(pack(codes))))

    n_steps = codes.shape[1]
    for i in range(len(flat)):
        if i % n_steps:
            flat[i] = (flat[i] + flat[i - 1]) & 255
    assert bytes(flat) == codes.tobytes()
