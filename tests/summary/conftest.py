"""A slow, plain reference for every field of a Summary, and a comparison that is exact where Summary says so."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from hypocenter.nouns import Summary


def reference_summary(values: np.ndarray, smallest_normal: float = 0.0) -> Summary:
    """Summarise float64 values element by element with `math` only."""
    finite = [float(v) for v in values.reshape(-1) if math.isfinite(v)]
    magnitudes = [abs(v) for v in finite if v]
    exponents = [math.frexp(m)[1] - 1 for m in magnitudes]
    first, last = (min(exponents), max(exponents)) if exponents else (0, -1)
    return Summary(
        n=values.size,
        n_nan=sum(math.isnan(v) for v in values.reshape(-1)),
        n_posinf=sum(v == math.inf for v in values.reshape(-1)),
        n_neginf=sum(v == -math.inf for v in values.reshape(-1)),
        n_hist=values.size,
        n_zero=len(finite) - len(magnitudes),
        n_subnormal=sum(m < smallest_normal for m in magnitudes),
        min=min(finite, default=None),
        max=max(finite, default=None),
        absmin=min(magnitudes, default=None),
        absmax=max(magnitudes, default=0.0),
        sum=math.fsum(finite),
        sumsq=math.fsum(v * v for v in finite),
        hist_first=first,
        hist=tuple(exponents.count(e) for e in range(first, last + 1)),
    )


SUMS = ("sum", "sumsq")
SAMPLED = ("n_hist", "n_zero", "n_subnormal", "absmin", "hist_first", "hist")


def check_equal(actual: Summary, expected: Summary, *, rel: float = 1e-12, but: tuple[str, ...] = ()) -> None:
    """Assert that all fields are equal, sums within `rel` of what was added up (Cauchy-Schwarz bounds sum|x|)."""
    for field in Summary.__dataclass_fields__:
        if field not in (*SUMS, *but, "sketch"):
            assert getattr(actual, field) == getattr(expected, field), field
    assert actual.sumsq == pytest.approx(expected.sumsq, rel=rel, abs=1e-300)
    added = math.sqrt(expected.n) * math.sqrt(expected.sumsq) + expected.absmax
    assert abs(actual.sum - expected.sum) <= rel * added


@pytest.fixture(scope="session")
def reference() -> Callable[..., Summary]:
    return reference_summary


@pytest.fixture(scope="session")
def same() -> Callable[..., None]:
    return check_equal


@pytest.fixture(scope="session")
def sampled() -> tuple[str, ...]:
    return SAMPLED
