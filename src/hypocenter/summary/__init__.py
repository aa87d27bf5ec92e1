"""In: tensors of any framework (reducers, loaded by full path). Out: `Summary`, a monoid, and what it answers."""

from hypocenter.nouns import Summary
from hypocenter.summary.formats import FORMATS, Format, find_format
from hypocenter.summary.histogram import (
    headroom_bits,
    overflow_fraction,
    subnormal_fraction,
    underflow_fraction,
    zero_fraction,
)
from hypocenter.summary.merge import merge, merge_all
from hypocenter.summary.sketch import Placement, cosine, distance, norm, relative_error

__all__ = [
    "FORMATS",
    "Format",
    "Placement",
    "Summary",
    "cosine",
    "distance",
    "find_format",
    "headroom_bits",
    "merge",
    "merge_all",
    "norm",
    "overflow_fraction",
    "relative_error",
    "subnormal_fraction",
    "underflow_fraction",
    "zero_fraction",
]
