"""Arrays of every format and shape with every kind of number: what reducers are compared on, in any environment."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

EDGES: dict[str, list[float]] = {
    "float16": [0.0, -0.0, 6e-8, -6e-5, 6.104e-5, 65504.0, np.nan, np.inf, -np.inf, 1.0, 2.0],
    "float32": [0.0, -0.0, 1e-45, -1e-40, 1.1754944e-38, 3.4e38, np.nan, np.inf, -np.inf, 0.5, -1.0],
    "float64": [0.0, -0.0, 5e-324, -1e-310, 2.2250738585072014e-308, 1e150, np.nan, np.inf, -np.inf, 2.0 - 2.0**-52],
}
INTEGERS = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
SHAPES: list[tuple[int, ...]] = [(), (1,), (0,), (3, 0), (5,), (1024,), (1025,), (33, 65), (4, 5, 600), (300_001,)]


def arrays(dtype: str) -> st.SearchStrategy[np.ndarray]:
    """Small arrays of a format, with what is at the edges of it."""
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
    return hnp.arrays(
        dtype, shapes, elements=st.sampled_from(np.array(EDGES[dtype], dtype).tolist()) | st.floats(-1e4, 1e4, width=16)
    )


def on_a_grid(shape: tuple[int, ...], dtype: str, seed: int, *, bad: bool = False) -> np.ndarray:
    """Multiples of 1/16 up to 8: their sums, of squares too, are exact in every framework, so all bits can agree."""
    rng = np.random.default_rng(seed)
    array = (rng.integers(-128, 129, shape) / 16).astype(np.float64)
    if bad and array.size > 3:
        array.reshape(-1)[[0, array.size // 2, array.size - 1]] = [np.nan, np.inf, -np.inf]
    kind = np.dtype(dtype).kind
    if kind == "c":
        return (
            np.stack([array, array[::-1] if array.ndim else array], axis=-1).view(np.complex128)[..., 0].astype(dtype)
        )
    return array.astype(dtype) if kind == "f" else rng.integers(0, 2 if dtype == "bool" else 90, shape).astype(dtype)


def bfloat16_bits(array: np.ndarray) -> np.ndarray:
    """The upper half of float32 numbers: bfloat16 rounded towards zero."""
    return (np.ascontiguousarray(array, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
