"""The floating-point formats of training: their limits, and where rounding to nearest even overflows or gives zero.

The one place for such numbers: what else in the source depends on a format asks `format_of` or `FORMATS`.

Sources: binary16, binary32 and binary64: IEEE 754-2019, table 3.5. bfloat16: Intel 338302-001US (2018), binary32 with
the last 16 fraction bits cut off. float8: OCP 8-bit Floating Point Specification (OFP8), revision 1.0 (2023), table 1;
those named fnuz: Noune et al., 8-bit Numerical Formats for Deep Neural Networks (2022), arXiv:2206.02915.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from hypocenter.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A binary floating-point format with subnormals."""

    name: str  # as in Reading.dtype
    alias: str
    fraction_bits: int
    smallest_exponent: int  # of a normal number
    largest_exponent: int
    max: float
    has_infinity: bool = True  # without one the largest value has an even significand, so that a tie rounds down to it

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number; below it values lose precision."""
        return 2.0**self.smallest_exponent

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return 2.0 ** (self.smallest_exponent - self.fraction_bits)

    @property
    def eps(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0**-self.fraction_bits

    @property
    def roundoff(self) -> float:
        """Unit roundoff: the largest relative error of rounding to nearest, half of `eps`."""
        return self.eps / 2

    @property
    def noise(self) -> float:
        """The relative error of a value where noise is measured: one rounding, two where the format itself adds up.

        Sums of shorter formats than float32 are formed in float32, and rounded once.
        """
        return self.eps if self.fraction_bits >= 23 else self.roundoff

    @property
    def whole_up_to(self) -> int:
        """The number up to which all whole numbers are in the format; of larger ones only some are."""
        return 2 ** (self.fraction_bits + 1)

    @property
    def least_kept(self) -> float:
        """The least number that is kept: smaller ones may become zero, as devices keep subnormals only in float16."""
        return self.smallest_subnormal if self.name == "float16" else self.smallest_normal

    @property
    def overflows_from(self) -> Fraction:
        """The magnitude from which numbers overflow, half a step above `max`; it itself only if there is an inf."""
        return Fraction(self.max) + Fraction(2) ** (self.largest_exponent - self.fraction_bits - 1)

    @property
    def flushes_to(self) -> Fraction:
        """The magnitude up to which all become zero: half the smallest subnormal, by the tie to even."""
        return Fraction(2) ** (self.smallest_exponent - self.fraction_bits - 1)


_ALL = (
    Format(
        name="float64", alias="fp64", fraction_bits=52, smallest_exponent=-1022, largest_exponent=1023,
        max=1.7976931348623157e308,  # (2 - 2**-52) * 2**1023
    ),
    Format(
        name="float32", alias="fp32", fraction_bits=23, smallest_exponent=-126, largest_exponent=127,
        max=3.4028234663852886e38,  # (2 - 2**-23) * 2**127
    ),
    Format(
        name="bfloat16", alias="bf16", fraction_bits=7, smallest_exponent=-126, largest_exponent=127,
        max=3.3895313892515355e38,  # (2 - 2**-7) * 2**127
    ),
    Format(
        name="float16", alias="fp16", fraction_bits=10, smallest_exponent=-14, largest_exponent=15,
        max=65504.0,  # (2 - 2**-10) * 2**15
    ),
    Format(
        name="float8_e4m3fn", alias="fp8_e4m3fn", fraction_bits=3, smallest_exponent=-6, largest_exponent=8,
        max=448.0,  # 1.75 * 2**8: S.1111.110; S.1111.111 is NaN and there is no infinity
        has_infinity=False,
    ),
    Format(
        name="float8_e5m2", alias="fp8_e5m2", fraction_bits=2, smallest_exponent=-14, largest_exponent=15,
        max=57344.0,  # 1.75 * 2**15
    ),
)  # fmt: skip

FORMATS: dict[str, Format] = {form.name: form for form in _ALL}
"""The formats by the name that Reading.dtype uses, widest first."""

_FNUZ = (  # no infinity, no negative zero, and the exponent moved down by one
    Format(
        name="float8_e4m3fnuz", alias="fp8_e4m3fnuz", fraction_bits=3, smallest_exponent=-7, largest_exponent=7,
        max=240.0, has_infinity=False,
    ),
    Format(
        name="float8_e5m2fnuz", alias="fp8_e5m2fnuz", fraction_bits=2, smallest_exponent=-15, largest_exponent=15,
        max=57344.0, has_infinity=False,
    ),
)  # fmt: skip
_BY_DTYPE = {form.name: form for form in (*_ALL, *_FNUZ)} | {
    "complex64": FORMATS["float32"], "complex128": FORMATS["float64"],
}  # fmt: skip
_BY_ALIAS = {form.alias: form for form in _ALL} | {"half": FORMATS["float16"], "float": FORMATS["float32"]}


def find_format(name: str) -> Format:
    """Return the format of that name ("float16", "fp16", "torch.float16").

    Raises:
        UnknownNameError: no such format.
    """
    short = name.removeprefix("torch.")
    found = FORMATS.get(short) or _BY_ALIAS.get(short)
    if found is None:
        raise UnknownNameError(f"unknown floating-point format {name!r}", fix=f"use one of {', '.join(FORMATS)}")
    return found


def format_of(dtype: object) -> Format | None:
    """Return the format that a dtype's numbers have (of a complex one both parts); None for integers and others.

    Args:
        dtype: of torch or NumPy, or its name ("bfloat16", "torch.bfloat16").
    """
    return _BY_DTYPE.get(str(dtype).rpartition(".")[2])


LARGEST: dict[str, float] = {name: form.max for name, form in _BY_DTYPE.items()}
"""The largest finite value, by dtype."""
