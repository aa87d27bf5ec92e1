"""In: tensors of any framework (reducers, loaded by full path). Out: `Summary`, a monoid, and what it answers."""

from hypocenter.formats import FORMATS, Format, find_format
from hypocenter.nouns import Summary
from hypocenter.summary.casting import Bounds, n_flushed, n_overflowing, n_subnormal
from hypocenter.summary.histogram import (
    headroom_bits,
    overflow_fraction,
    subnormal_fraction,
    underflow_fraction,
    zero_fraction,
)
from hypocenter.summary.merge import merge, merge_all
from hypocenter.summary.scale_window import ScaleWindow, intersection, scale_window
from hypocenter.summary.sketch import Placement, cosine, distance, norm, relative_error

__all__ = [
    "FORMATS",
    "Bounds",
    "Format",
    "Placement",
    "ScaleWindow",
    "Summary",
    "cosine",
    "distance",
    "find_format",
    "headroom_bits",
    "intersection",
    "merge",
    "merge_all",
    "n_flushed",
    "n_overflowing",
    "n_subnormal",
    "norm",
    "overflow_fraction",
    "relative_error",
    "scale_window",
    "subnormal_fraction",
    "underflow_fraction",
    "zero_fraction",
]
