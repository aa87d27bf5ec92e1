from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hypocenter.align.repeats import Nudged
from hypocenter.align.rounding import rounding, unit
from hypocenter.compare.values.bits import decoded
from hypocenter.compare.weights.checkpoint import Box, Tensor, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Tensor):
    """A tensor in memory."""

    raw: Any

    def read(self, box: Box) -> Any:
        return self.raw[tuple(slice(start, stop) for start, stop in box)]


def _held(dtype: str) -> Held:
    values = np.random.default_rng(0).standard_normal((8, 50)).astype(np.float32)
    values[0] = 0.0
    raw = (values.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bfloat16" else values.astype(dtype)
    return Held(shape=(8, 50), dtype=dtype, raw=raw)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_moves_values_by_no_more_than_asked_and_leaves_zeros(dtype: str) -> None:
    of, size = _held(dtype), 2.0**-7
    nudged = Nudged(shape=of.shape, dtype=dtype, of=of, size=size, seed=(1, 2))

    before, after = (decoded(np.asarray(one.read(whole(of.shape))), dtype) for one in (of, nudged))

    moved = np.abs(after - before)
    assert (moved <= (size + 2 * unit(dtype)) * np.abs(before)).all()
    assert not moved[0].any()
    assert (moved[1:] > 0).mean() > 0.5
    assert nudged.read(whole(of.shape)).dtype == of.raw.dtype


def test_is_the_same_at_each_reading_and_another_for_another_seed() -> None:
    of, box = _held("float32"), ((2, 6), (0, 50))
    nudged = [Nudged(shape=of.shape, dtype="float32", of=of, size=1e-3, seed=(seed,)).read(box) for seed in (1, 1, 2)]

    assert (nudged[0] == nudged[1]).all()
    assert (nudged[0] != nudged[2]).any()


def test_noise_is_measured_with_what_calibration_puts_values_off_by() -> None:
    assert rounding("float32") == 2.0**-23
    assert rounding("bfloat16") == 2.0**-8
