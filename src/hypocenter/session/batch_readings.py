"""The row of one tensor of a batch: what its numbers are written down as, whatever framework took them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from hypocenter.detect.replica_rows import BATCH_PORT, BATCH_PREFIX, FIELD_PORT
from hypocenter.nouns import Reading, Summary

FIRST = 3  # steps from the start that are looked at in full: ranks that share data do so from there
WHOLE = 1 << 20  # elements of an input up to which all are read; of a larger one of floats this many at a stride
BRIEF = 1 << 14  # the same at a step at which floats are only looked at
AT_MOST = 16  # tensors of one batch

Inside: TypeAlias = tuple[tuple[int, ...], tuple[float, ...]]
"""Of each kept row digest · ROW_PLACES + its place in the batch; shares, as `hypocenter.batch_numbers` has them."""
NOTHING: Inside = ((), ())
Moments: TypeAlias = "Sequence[float] | None"
"""Smallest and largest value, mean, standard deviation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A tensor of a batch, and which numbers of it are taken: of all of it (BATCH_PORT), or of a sample."""

    name: str
    port: str
    microbatch: int
    order: int
    dtype: str
    shape: tuple[int, ...]
    n: int

    def reading(self, step: int, digest: int, moments: Moments, inside: Inside) -> Reading:
        """Return the row for this tensor, with its digest and its moments."""
        is_float = self.dtype.startswith(("float", "bfloat", "complex"))
        rows, shares = inside if self.port == FIELD_PORT or not is_float else NOTHING
        return Reading(
            step=step, microbatch=self.microbatch, phase="data", site=BATCH_PREFIX + self.name, port=self.port,
            order=self.order, dtype=self.dtype, shape=self.shape, digest=digest,
            summary=self._summary(moments, is_twice=is_float and self.port == BATCH_PORT),
            row_digests=rows, shares=shares,
        )  # fmt: skip

    def _summary(self, moments: Moments, *, is_twice: bool) -> Summary:
        """Make a summary of the sample's moments; empty where the row at port `field` tells the same of floats."""
        if moments is None or is_twice or not all(map(math.isfinite, moments)):
            return Summary(n=self.n)
        low, high, mean, spread = moments
        return Summary(
            n=self.n, min=low, max=high, absmax=max(abs(low), abs(high)), sum=mean * self.n,
            sumsq=(mean * mean + spread * spread) * self.n,
        )  # fmt: skip
