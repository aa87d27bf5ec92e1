"""The values of a tensor in a file, measured part by part: summary, sketch and checksum, with a bound on memory."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hypocenter.compare.weights.checkpoint import Box, Tensor, boxes, extent, whole
from hypocenter.compare.weights.elements import is_floating, values
from hypocenter.nouns import Summary
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers.numpy import summarize
from hypocenter.summary.sketch import Placement
from hypocenter.summary.sketch import sketch as sketch_of

AT_ONCE = 1 << 24  # elements measured in one piece: 128 MiB as float64, and to the bit what the other reducers give
PART = 1 << 22  # elements of a larger tensor at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What all of the values are."""

    summary: Summary  # with a sketch, of floating-point numbers
    crc32: int  # of the bytes in row-major order, as they are stored


def measure(tensor: Tensor, *, at_once: int = AT_ONCE, sketch: bool = True) -> Measured:
    """Read all of a tensor once.

    Args:
        tensor: where the values lie.
        at_once: elements that are held in memory; the sketch of a larger tensor is summed up from its parts.
        sketch: whether floating-point numbers are sketched.

    Raises:
        CheckpointError: the values cannot be read.
    """
    is_small = tensor.n <= at_once
    parts: list[Box] = [whole(tensor.shape)] if is_small else list(boxes(tensor.shape, at_most=min(PART, at_once)))
    crc, summaries, total = 0, list[Summary](), np.zeros(0)
    for box in parts:
        bits = np.ascontiguousarray(tensor.read(box))
        crc = zlib.crc32(bits.reshape(-1).view(np.uint8).data, crc)
        array = _numbers(bits, tensor.dtype)
        if not sketch or not is_floating(tensor.dtype):
            summaries.append(summarize(array))
            continue
        if is_small:
            summaries.append(summarize(array, sketch=True))
            continue
        summaries.append(summarize(array))
        place = Placement(shape=tensor.shape, offset=tuple(start for start, _ in box))
        part = sketch_of(array.reshape(extent(box)), place).astype(np.float64)
        total = part if not total.size else total + part
    summary = merge_all(summaries) if len(summaries) != 1 else summaries[0]
    if total.size:
        summary = replace(summary, sketch=tuple(total.astype(np.float32).tolist()))
    return Measured(summary=summary, crc32=crc)


def _numbers(bits: Any, dtype: str) -> Any:
    if dtype == "bfloat16":  # a float32 has the same exponents, so the same numbers are subnormal
        return values(bits, dtype).astype(np.float32)
    return values(bits, dtype) if dtype.startswith("float8") else bits
