"""What a format with scales for blocks or for the tensor would make of a tensor, from a Summary alone.

A scale follows the largest magnitude of its block, so nothing overflows; what is small beside the largest of its block
becomes zero. A histogram does not know which values share a block: so there are bounds that hold for any arrangement,
and an estimate for values that lie in no order.

mxfp8: OCP Microscaling Formats (MX), version 1.0 (2023), 5.1 and 6.3: blocks of 32 E4M3 elements, a scale E8M0 of
2^(floor(log2 amax) - 8). CUDA, TransformerEngine and torchao also round it up (RCEIL, CEIL), by one octave at most.
nvfp4: NVIDIA, Pretraining Large Language Models with NVFP4 (2025), arXiv:2509.25149: blocks of 16 E2M1 elements, a
scale E4M3 of amax / 6 over the tensor's own scale, amax / (6 * 448) in float32.
fp8-block: DeepSeek-V3 Technical Report (2024), arXiv:2412.19437, 3.3: 1 x 128 of activations and gradients, 128 x 128
of weights, E4M3, a scale of amax / 448; TransformerEngine rounds it to a power of two.
fp8-tensor: Micikevicius et al. 2022, arXiv:2209.05433, and TransformerEngine's HYBRID recipe: one scale for the tensor,
E4M3 in forward, E5M2 of gradients.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from hypocenter.formats import FORMATS, Format
from hypocenter.nouns import Summary
from hypocenter.summary.casting import n_flushed, n_nonzero

E2M1 = Format(
    name="float4_e2m1fn",
    alias="fp4",
    fraction_bits=1,
    smallest_exponent=0,
    largest_exponent=2,
    max=6.0,
    has_infinity=False,
)
"""OCP MX 1.0, table 4."""
_E4M3, _E5M2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledFormat:
    """A small format for elements, under scales that follow the data.

    Attributes:
        element: format of an element.
        of_gradients: the same of gradients.
        block: elements under one scale; 0: the tensor.
        of_weights: the same of parameters.
        certain: an element at least so many octaves below the largest of its block becomes zero, whatever rule of
            rounding the scale has; octaves are those of a histogram.
        possible: one that is less than that cannot become zero.
        middle: log2 of the largest of a block over the largest element that becomes zero, without rounding.
        lost: octaves below the tensor's largest, from which on elements become zero whatever block they are in.
        shaky: the same, from which on they may.
    """

    name: str
    element: Format
    of_gradients: Format
    block: int
    of_weights: int
    certain: int = 0
    possible: int = 0
    middle: float = 0.0
    lost: float = math.inf
    shaky: float = math.inf

    def block_of(self, phase: str) -> int:
        """Return how many elements are under one scale, of values of this phase."""
        return self.of_weights if phase == "param" else self.block

    def element_of(self, phase: str) -> Format:
        """Return the format of elements, of values of this phase."""
        return self.of_gradients if phase in ("backward", "grad") else self.element


SCALED: Mapping[str, ScaledFormat] = {
    form.name: form
    for form in (
        # largest / 2^8 is the scale, rounded down or, by RCEIL and CEIL, up; 2^-10 of it is half the smallest element
        ScaledFormat(
            name="mxfp8",
            element=_E4M3,
            of_gradients=_E4M3,
            block=32,
            of_weights=32,
            certain=19,
            possible=17,
            middle=18.5,
        ),
        # largest / 24, times 1 +- 1/16; scales below 2^-6 have fewer bits, or torchao keeps them at it
        ScaledFormat(
            name="nvfp4",
            element=E2M1,
            of_gradients=E2M1,
            block=16,
            of_weights=16,
            certain=6,
            possible=4,
            middle=math.log2(24),
            lost=24,
            shaky=19,
        ),
        # largest / 448 * 2^-10; a power of two may be twice that
        ScaledFormat(
            name="fp8-block",
            element=_E4M3,
            of_gradients=_E4M3,
            block=128,
            of_weights=128 * 128,
            certain=20,
            possible=17,
            middle=math.log2(448) + 10,
        ),
        ScaledFormat(name="fp8-tensor", element=_E4M3, of_gradients=_E5M2, block=0, of_weights=0),
    )
}
"""By the name that `headroom --format` takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Zeros:
    """How many nonzero elements of those that the histogram looked at become zero.

    Attributes:
        least: at least, however they are arranged.
        expected: if they lie in no order.
        most: at most, however they are arranged.
    """

    least: float = 0.0
    expected: float = 0.0
    most: float = 0.0


def zeros(summary: Summary, form: ScaledFormat, phase: str) -> Zeros:
    """Return how many elements of one tensor, which has its own scales, become zero.

    Args:
        summary: of it alone; its histogram of all elements, or the bounds are those of the sample.
        form: the target.
        phase: of the reading: parameters and gradients may have other blocks and elements.
    """
    if not summary.absmax or not n_nonzero(summary):
        return Zeros()
    block, element = form.block_of(phase), form.element_of(phase)
    if not block:
        bounds = n_flushed(summary, element, element.max / summary.absmax)
        return Zeros(least=bounds.least, expected=(bounds.least + bounds.most) / 2, most=bounds.most)
    top = math.frexp(summary.absmax)[1] - 1 - summary.hist_first  # index of the octave of the largest
    counts = [*summary.hist, *[0] * (top + 1 - len(summary.hist))]
    counts[top] = max(1, counts[top])  # a sample may not hold the largest
    always = sum(n for j, n in enumerate(counts) if j <= top - form.lost)
    maybe = [n if j <= top - form.shaky else 0 for j, n in enumerate(counts)]
    rest = [n - m for n, m in zip(counts, maybe, strict=True)]
    most = sum(maybe) + _at_most(rest, counts, block, form.possible)
    return Zeros(least=always, expected=min(max(always, _expected(summary, block, form)), most), most=most)


def _at_most(small: Sequence[int], counts: Sequence[int], block: int, distance: int) -> int:
    """Return how many elements at most can each share a block with one that is so many octaves above.

    The hardest to place come first; who may stand above them may stand above all that are smaller.
    """
    placed = 0
    above = [*accumulate(reversed(counts))][::-1]  # elements in this octave and all above
    for j in range(len(counts) - 1, -1, -1):
        room = (block - 1) * (above[j + distance] if j + distance < len(above) else 0) - placed
        placed += min(small[j], max(0, room))
    return placed


def _expected(summary: Summary, block: int, form: ScaledFormat) -> float:
    """Return how many elements are expected to become zero if they lie in no order."""
    counts, n = summary.hist, summary.n_hist
    others = min(block, n) - 1
    if others < 1:
        return 0.0
    above = [*[*accumulate(reversed(counts))][::-1], 0]  # elements in this octave and all above
    none = [_none_of(above[e], n - 1, others) for e in range(len(counts) + 1)]
    largest = [none[e + 1] - none[e] for e in range(len(counts))]  # how likely the largest of them is in this octave
    return sum(
        here * sum(largest[e] * _chance(e - j - form.middle) for e in range(j + 1, len(counts)))
        for j, here in enumerate(counts)
        if here
    )


def _none_of(chosen: int, n: int, draws: int) -> float:
    """Return how likely it is that no chosen one is drawn: of n, `chosen` are, and `draws` are taken."""
    if chosen + draws > n:
        return 0.0
    if n > 1000 * draws:  # as if each were put back: the exact formula would lose its digits
        return math.exp(draws * math.log1p(-chosen / n))
    parts = (n - chosen + 1, n - chosen - draws + 1, n + 1, n - draws + 1)
    left, less, whole, rest = map(math.lgamma, parts)
    return math.exp(left - less - whole + rest)


def _chance(excess: float) -> float:
    """Return how likely u - v is at most this, of two numbers that lie anywhere in their octaves."""
    if excess <= -1.0 or excess >= 1.0:
        return float(excess > 0)
    return (1.0 + excess) ** 2 / 2 if excess < 0 else 1.0 - (1.0 - excess) ** 2 / 2
