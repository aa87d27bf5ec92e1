"""How noisy the gradient is: the batch size at which noise and signal are equal.

What it means
    The simple noise scale: the trace of the covariance of one sample's gradient over the square norm of the true
    gradient (McCandlish et al. 2018, arXiv 1812.06162). Batches far below it are mostly noise, and a larger one
    needs nearly as many times fewer steps; batches far above it waste samples. It grows as training goes on.

How it is decided
    From square norms of gradients of a small and a large batch of the same step (there, appendix A.1): of
    micro-batches, up to 4 of which `run --health` does again, or of ranks before their reduction, which is recorded
    with several ranks (not where each rank holds a shard of the gradient). Both estimates are averaged over the run,
    then divided. Where the signal is not above the noise, that is said. There is no range: it is out of none.

What to do
    Compare it with your batch size when you choose one, or a learning rate for it.

When it is wrong
    Dropout and samples that are not independent (packed, sorted, one document in a micro-batch) count as noise or
    hide it. Of few looks it is rough.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hypocenter.detect.columns import Floats, Ints
from hypocenter.detect.health_rows import NOISE
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.recorded_health import Recorded

_SAME = 1e-3  # relative: norms that all ranks agree on are of the whole gradient, others of their shards


@dataclass(frozen=True, slots=True, kw_only=True)
class Norms:
    """Of one step: mean square norm of n parts, and square norm of their mean."""

    step: int
    small: float
    big: float
    n: float


@measure("gradient-noise", column="noise", needs="health", order=120)
def take(recorded: Recorded) -> Iterator[Value]:
    """One of micro-batches, one of ranks."""
    looks = recorded.looks(NOISE)
    if looks:
        looked = [pair for series in looks for pair in zip(series.steps.tolist(), series.looks, strict=True)]
        found = [Norms(step=step, small=of[0], big=of[1], n=of[2]) for step, of in looked]
        yield from _value(found, "micro-batch", looks[0].numbers[3])
    yield from _value(of_ranks(recorded), "batch of a rank", 0.0)


def of_ranks(recorded: Recorded) -> list[Norms]:
    """Of steps in which the local gradients of all parameters were recorded on several ranks."""
    local = recorded.local_gradients
    if not local:
        return []
    steps = np.unique(np.concatenate([series.steps for series in local]))
    ranks = {rank: number for number, rank in enumerate(dict.fromkeys(series.place.rank for series in local))}
    squares, n_sites = np.zeros((len(ranks), len(steps))), np.zeros((len(ranks), len(steps)), np.int64)
    for series in local:
        is_first = series.column("microbatch") == 0
        at, rank = np.searchsorted(steps, series.steps[is_first]), ranks[series.place.rank]
        squares[rank, at] += series.column("sumsq")[is_first]
        n_sites[rank, at] += 1
    low, whole, n_norms = _norms_of_ranks(recorded, steps)
    has_part, n_all = n_sites > 0, len({series.place.site for series in local})
    n_parts = has_part.sum(axis=0)
    with np.errstate(invalid="ignore"):  # infinite ones are not the same
        is_of_all = (n_norms == n_parts) & (n_parts > 1) & (whole - low <= _SAME * whole)
    is_of_all &= (n_sites == np.where(has_part, n_all, 0)).all(axis=0)
    return [
        Norms(step=int(steps[at]), small=float(squares[:, at].sum()) / n, big=float(whole[at]) ** 2, n=n)
        for at in np.flatnonzero(is_of_all)
        for n in [int(n_parts[at])]
    ]


def _norms_of_ranks(recorded: Recorded, steps: Ints) -> tuple[Floats, Floats, Ints]:
    """The smallest and largest norm of the whole gradient at each step, and how many ranks have one."""
    low, high, n = np.full(len(steps), np.inf), np.zeros(len(steps)), np.zeros(len(steps), np.int64)
    for own, norms in recorded.norms:
        is_there = np.isin(own, steps)
        at = np.searchsorted(steps, own[is_there])
        with np.errstate(invalid="ignore"):  # NaN stays
            np.minimum.at(low, at, norms[is_there])
            np.maximum.at(high, at, norms[is_there])
        np.add.at(n, at, 1)
    return low, high, n


def noise_scale(found: Sequence[Norms]) -> tuple[float, float]:
    """(trace of the covariance, square norm of the gradient), means of unbiased estimates, in units of one part."""
    signal = [(each.n * each.big - each.small) / (each.n - 1) for each in found]
    noise = [(each.small - each.big) * each.n / (each.n - 1) for each in found]
    return sum(noise) / len(noise), sum(signal) / len(signal)


def _value(found: Sequence[Norms], part: str, n_samples: float) -> Iterator[Value]:
    if not found:
        return
    noise, signal = noise_scale(found)
    parts = "micro-batches" if part == "micro-batch" else "batches of a rank"
    scale = max(noise, 0.0) / signal if signal > 0 else math.inf
    if signal > 0:
        says = f"noise is as large as the gradient at {short(round(scale, 2))} {parts}"
        says += f", {short(round(scale * n_samples))} samples" if n_samples else ""
    else:
        says = f"no gradient is seen above the noise of {found[0].n:.0f} {parts}"
    yield Value(
        site="",
        value=scale * (n_samples or 1.0),
        says=f"{says} ({len(found)} steps)",
        is_out=False,
        how_far=scale,
        step=found[-1].step,
    )
