"""By how much a number is off that is off by one rounding, by format; measured, see hypocenter.replay.calibration."""

from __future__ import annotations

from hypocenter.formats import FORMATS

SAMPLES = 3  # perturbed replays of a micro-batch (TTrace takes as many)
UNIT = {name: FORMATS[name].noise for name in ("float64", "float32", "float16", "bfloat16")}
"""Relative: float32 adds up in its own format, so one unit roundoff is too little; the short formats round once."""

EXACT_UP_TO = {"float64": 2.0**26, "float32": 2.0**12, "float16": 2.0**6, "bfloat16": 2.0**4}
"""Whole numbers up to here are counts, masks and one-hot vectors, whose sums are exact in any order: left alone."""
