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
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
        found = [_norms(row.step, row.summary.sketch or ()) for series in looks for row in series.rows]
        yield from _value(found, "micro-batch", looks[0].numbers[3])
    yield from _value(of_ranks(recorded), "batch of a rank", 0.0)


def _norms(step: int, numbers: Sequence[float]) -> Norms:
    return Norms(step=step, small=numbers[0], big=numbers[1], n=numbers[2])


def of_ranks(recorded: Recorded) -> list[Norms]:
    """Of steps in which the local gradients of all parameters were recorded on several ranks."""
    squares: defaultdict[int, defaultdict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    n_all = len({series.place.site for series in recorded.local_gradients})
    for series in recorded.local_gradients:
        for row in series.rows:
            if row.microbatch == 0:
                squares[row.step][series.place.rank][row.site] = row.summary.sumsq
    norms: defaultdict[int, list[float]] = defaultdict(list)
    for _, record in recorded.records:
        if record.n_microbatches == 1 and record.grad_norm is not None:
            norms[record.step].append(record.grad_norm)
    found: list[Norms] = []
    for step, ranks in sorted(squares.items()):
        whole = max(norms[step], default=0.0)
        is_of_all = len(norms[step]) == len(ranks) > 1 and whole - min(norms[step]) <= _SAME * whole
        if is_of_all and all(len(sites) == n_all for sites in ranks.values()):
            parts = [sum(sites.values()) for sites in ranks.values()]
            found.append(Norms(step=step, small=sum(parts) / len(parts), big=whole**2, n=len(parts)))
    return found


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
