"""How numbers read in a sentence, and the largest value of each floating format."""

from __future__ import annotations

import math

LARGEST: dict[str, float] = {
    "float16": 65504.0,  # IEEE 754 binary16
    "bfloat16": 3.3895313892515355e38,  # (2 - 2**-7) * 2**127
    "float32": 3.4028234663852886e38,  # IEEE 754 binary32
    "float64": 1.7976931348623157e308,  # IEEE 754 binary64
    "complex64": 3.4028234663852886e38,
    "complex128": 1.7976931348623157e308,
    "float8_e4m3fn": 448.0,  # OCP 8-bit floating point, E4M3
    "float8_e5m2": 57344.0,  # OCP 8-bit floating point, E5M2
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2fnuz": 57344.0,
}


def short(value: float) -> str:
    """A number in five digits where that is readable, in three with an exponent elsewhere: 65504, 1.1e5, 3.4e38."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+inf" if value > 0 else "-inf"
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.5g}".replace("e+0", "e")
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def above(value: float, limit: float) -> str:
    """`value > limit`, with as many digits as it takes to see that it is."""
    text = short(value)
    if float(text) <= limit:
        text = repr(value)
    return f"{text} > {short(limit)}"


def counted(n: int, noun: str) -> str:
    """A count with its noun: "1 value", "2 values", "16,777,216 values"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
