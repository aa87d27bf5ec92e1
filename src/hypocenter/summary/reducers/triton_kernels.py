"""Kernels of torch_triton: all that a Summary says of a row of numbers, read once. Needs Triton, which torch may bring.

Numbers are taken apart as integers, so that no compiler or device flushes a subnormal or orders NaN as it likes, and
formats that the device cannot compute with are read too. Floats are only added, in float64, each program's in an order
that depends on the number of elements alone; histograms are added by integer atomics. So results repeat to the bit.

A format is told by constants:
    IS_FLOAT, IS_WIDE   whether it is a float; of 64 bits. Integers become float64 first, as those of torch_exact do
    FRACTION, BIAS      bits of the fraction, bias of the exponent
    INFINITY, LAST      patterns of +inf (or what is none) and of the largest finite number
    MAGNITUDE           all bits but the sign
    MINUS_ZERO_IS_NAN   as in the formats named fnuz
A key is a number's magnitude as an integer, with its sign: keys are ordered as their numbers are.
"""

# pyright: basic, reportMissingImports=false, reportUnknownMemberType=false

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _pattern(values, IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr):
    """Bits of the numbers as signed integers of 32 or 64 bits."""
    if IS_FLOAT:
        if IS_WIDE:
            return values
        else:
            return values.to(tl.int32)
    else:
        return values.to(tl.float64).to(tl.int64, bitcast=True)


@triton.jit
def _in_float64(pattern, magnitude, IS_WIDE: tl.constexpr, FRACTION: tl.constexpr, BIAS: tl.constexpr):
    """The numbers themselves, exactly: significand times a power of two, both normal in float64."""
    if IS_WIDE:
        return pattern.to(tl.float64, bitcast=True)
    else:
        field = magnitude >> FRACTION
        significand = (magnitude & ((1 << FRACTION) - 1)) + tl.where(field > 0, 1 << FRACTION, 0)
        power = (tl.maximum(field, 1) + (1023 - BIAS - FRACTION)).to(tl.int64) << 52
        positive = significand.to(tl.float64) * power.to(tl.float64, bitcast=True)
        return tl.where(pattern < 0, -positive, positive)


@triton.jit
def _bin(magnitude, FRACTION: tl.constexpr, BIAS: tl.constexpr, FIRST: tl.constexpr):
    """0 for zero; for other finite numbers 1 + floor(log2) - FIRST: a subnormal's shows in its fraction as float64."""
    field = (magnitude >> FRACTION).to(tl.int32)
    fraction = (magnitude & ((1 << FRACTION) - 1)).to(tl.float64).to(tl.int64, bitcast=True)
    exponent = tl.where(field > 0, field - BIAS, (fraction >> 52).to(tl.int32) - (1023 + BIAS + FRACTION - 1))
    return tl.where(magnitude == 0, 0, exponent - FIRST + 1)


@triton.jit
def _is_nan(pattern, magnitude, INFINITY: tl.constexpr, LAST: tl.constexpr, MINUS_ZERO_IS_NAN: tl.constexpr):
    if MINUS_ZERO_IS_NAN:
        return (pattern < 0) & (magnitude == 0)
    else:
        return (magnitude > LAST) & (magnitude != INFINITY)


@triton.jit(do_not_specialize=["n", "programs"])  # else each divisor of theirs is compiled anew
def look(
    values, partial, hist, n, programs,
    IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr, FRACTION: tl.constexpr, BIAS: tl.constexpr, INFINITY: tl.constexpr,
    LAST: tl.constexpr, MAGNITUDE: tl.constexpr, MINUS_ZERO_IS_NAN: tl.constexpr, FIRST: tl.constexpr,
    BINS: tl.constexpr, IS_FULL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program takes every `programs`-th block of the row and leaves eight numbers in `partial`.

    NaN, +inf, -inf, smallest key, largest key, smallest nonzero magnitude, sum and sum of squares (bits of float64).
    With IS_FULL zeros and exponents of all are counted in `hist`; else neither these nor the smallest magnitude.
    """
    lane = tl.arange(0, BLOCK)
    number = tl.int64 if IS_WIDE else tl.int32
    low = tl.full([BLOCK], LAST + 1, number)
    high = tl.full([BLOCK], -LAST - 1, number)
    absmin = tl.full([BLOCK], LAST + 1, number)
    n_nan = tl.zeros([BLOCK], tl.int32)
    n_posinf = tl.zeros([BLOCK], tl.int32)
    n_neginf = tl.zeros([BLOCK], tl.int32)
    total = tl.zeros([BLOCK], tl.float64)
    squares = tl.zeros([BLOCK], tl.float64)
    for start in range(tl.program_id(0).to(tl.int64) * BLOCK, n, programs * BLOCK):
        at = start + lane
        is_there = at < n
        if start + BLOCK <= n:  # a load without a mask is a wide one, whatever n is
            read = tl.load(values + at)
        else:
            read = tl.load(values + at, mask=is_there, other=0)
        pattern = _pattern(read, IS_FLOAT, IS_WIDE)
        magnitude = pattern & MAGNITUDE
        is_nan = _is_nan(pattern, magnitude, INFINITY, LAST, MINUS_ZERO_IS_NAN)
        is_finite = is_there & (magnitude <= LAST) & (is_nan == 0)
        n_nan += (is_there & is_nan).to(tl.int32)
        n_posinf += (is_there & (pattern == INFINITY)).to(tl.int32)
        n_neginf += (is_there & (magnitude == INFINITY) & (pattern < 0)).to(tl.int32)
        key = tl.where(pattern < 0, -magnitude, magnitude)
        low = tl.minimum(low, tl.where(is_finite, key, LAST + 1))
        high = tl.maximum(high, tl.where(is_finite, key, -LAST - 1))
        wide = tl.where(is_finite, _in_float64(pattern, magnitude, IS_WIDE, FRACTION, BIAS), 0.0)
        total += wide
        squares += wide * wide
        if IS_FULL:
            absmin = tl.minimum(absmin, tl.where(is_finite & (magnitude != 0), magnitude, LAST + 1))
            place = _bin(magnitude, FRACTION, BIAS, FIRST)
            if BINS <= 512:  # in registers and shared memory; the last bin is for what does not count
                found = tl.histogram(tl.where(is_finite, place, BINS - 1), BINS)
                tl.atomic_add(hist + tl.arange(0, BINS), found.to(tl.int64), mask=found > 0)
            else:
                tl.atomic_add(hist + place, tl.full([BLOCK], 1, tl.int64), mask=is_finite)
    out = partial + tl.program_id(0) * 8
    tl.store(out, tl.sum(n_nan, 0).to(tl.int64))
    tl.store(out + 1, tl.sum(n_posinf, 0).to(tl.int64))
    tl.store(out + 2, tl.sum(n_neginf, 0).to(tl.int64))
    tl.store(out + 3, tl.min(low, 0).to(tl.int64))
    tl.store(out + 4, tl.max(high, 0).to(tl.int64))
    tl.store(out + 5, tl.min(absmin, 0).to(tl.int64))
    tl.store(out + 6, tl.sum(total, 0).to(tl.int64, bitcast=True))
    tl.store(out + 7, tl.sum(squares, 0).to(tl.int64, bitcast=True))


@triton.jit(do_not_specialize=["programs", "stride"])
def combine(
    values, partial, result, programs, stride,
    IS_FLOAT: tl.constexpr, IS_WIDE: tl.constexpr, FRACTION: tl.constexpr, BIAS: tl.constexpr, INFINITY: tl.constexpr,
    LAST: tl.constexpr, MAGNITUDE: tl.constexpr, MINUS_ZERO_IS_NAN: tl.constexpr, FIRST: tl.constexpr,
    IS_FULL: tl.constexpr, MOST_PROGRAMS: tl.constexpr, SIZE: tl.constexpr, RUN_LENGTH: tl.constexpr,
):  # fmt: skip
    """One program: `partial` into the eight numbers of `result`; without IS_FULL the sample's histogram behind them."""
    program = tl.arange(0, MOST_PROGRAMS)
    column = partial + program * 8
    is_there = program < programs
    tl.store(result, tl.sum(tl.load(column, mask=is_there, other=0), 0))
    tl.store(result + 1, tl.sum(tl.load(column + 1, mask=is_there, other=0), 0))
    tl.store(result + 2, tl.sum(tl.load(column + 2, mask=is_there, other=0), 0))
    tl.store(result + 3, tl.min(tl.load(column + 3, mask=is_there, other=LAST + 1), 0))
    tl.store(result + 4, tl.max(tl.load(column + 4, mask=is_there, other=-LAST - 1), 0))
    total = tl.load(column + 6, mask=is_there, other=0).to(tl.float64, bitcast=True)
    tl.store(result + 6, tl.sum(total, 0).to(tl.int64, bitcast=True))
    squares = tl.load(column + 7, mask=is_there, other=0).to(tl.float64, bitcast=True)
    tl.store(result + 7, tl.sum(squares, 0).to(tl.int64, bitcast=True))
    if IS_FULL:
        tl.store(result + 5, tl.min(tl.load(column + 5, mask=is_there, other=LAST + 1), 0))
    else:
        lane = tl.arange(0, SIZE)
        at = (lane // RUN_LENGTH).to(tl.int64) * stride + lane % RUN_LENGTH
        pattern = _pattern(tl.load(values + at), IS_FLOAT, IS_WIDE)
        magnitude = pattern & MAGNITUDE
        is_nan = _is_nan(pattern, magnitude, INFINITY, LAST, MINUS_ZERO_IS_NAN)
        is_finite = (magnitude <= LAST) & (is_nan == 0)
        tl.store(result + 5, tl.min(tl.where(is_finite & (magnitude != 0), magnitude, LAST + 1), 0).to(tl.int64))
        place = _bin(magnitude, FRACTION, BIAS, FIRST)
        tl.atomic_add(result + 8 + place, tl.full([SIZE], 1, tl.int64), mask=is_finite)


IS_INTERPRETED = not isinstance(look, triton.runtime.JITFunction)
