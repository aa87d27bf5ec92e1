"""The sentences of a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypocenter.compare.blame import Blame
from hypocenter.compare.comparison import Comparison, Divergence, RowComparison, is_given_to_loss
from hypocenter.compare.verdict import counts_from


def power(value: float) -> str:
    """Write a relative error as a power of two: `2^-6`; 0 and infinity as they are."""
    if value == 0.0:
        return "0"
    if not math.isfinite(value):
        return "inf" if value > 0 else "NaN"
    return f"2^{round(math.log2(value))}" if value < 64.0 else f"{value:.3g}"


def place(site: str, port: str = "") -> str:
    """Name a place: `layers.3.mlp out[0]`; the root is `the model itself`."""
    return f"{site or 'the model itself'} {port}".strip()


def sentence(found: Comparison, blame: Blame | None) -> str:
    """Say the answer in one sentence."""
    n_sites = len({spot.site for pair in found.matching.pairs for spot in pair.baseline})
    left = len(found.matching.unmatched_baseline) + len(found.matching.unmatched_candidate)
    unmatched = f"; {left:,} {'spot' if left == 1 else 'spots'} unmatched" if left else ""
    if not found.matching.pairs:
        return f"cannot tell: no site of one run has a counterpart in the other{unmatched}"
    if not found.n_rows:
        return f"cannot tell: {n_sites:,} sites are in both runs, but no step was recorded in both{unmatched}"
    if found.first is not None and found.status == "diverged":
        return f"{_diverged(found.first, blame)}, first of {n_sites:,} sites{unmatched}"
    if found.first is not None and blame is not None and blame.is_random:
        where = place(found.first.site, found.first.port)
        return (
            f"cannot tell after step {found.first.step}, {found.first.phase}: {where} drops values at random in both "
            f"runs, and not the same ones{unmatched}"
        )
    over = f"{n_sites:,} sites over {found.n_steps:,} step{'s' if found.n_steps != 1 else ''}"
    if found.status == "same":
        return f"same: {over}, {_how_same(found)}{unmatched}"
    return f"cannot tell: {_why_not(found)}{unmatched}"


def _diverged(first: Divergence, blame: Blame | None) -> str:
    builds = "builds up until " if blame is not None and blame.is_gradual else ""
    row = first.row
    if row is not None and row.pair.baseline[0].port == "digest":
        spot = row.pair.baseline[0]
        return f"diverged at step {first.step}, {first.phase}: {spot.site} holds other values"
    numbers = f"differs by {power(first.error)} (noise floor {power(first.floor)})"
    where = _spot_text(first)
    if blame is not None and blame.common_factor is not None:
        shared = blame.common_factor
        where, numbers = f"{shared.n:,} gradients", f"differ by one factor, {shared.factor:.6g}"
    return f"diverged at step {first.step}, {first.phase}: {builds}{where} {numbers}"


def with_rates(text: str, first: Divergence, rates: tuple[float, float]) -> str:
    """Return the answer with both learning rates (0.3 against 0.05) in the place of how far they are apart."""
    group = "" if first.site == "lr" else f" ({first.site})"
    numbers = f"{_spot_text(first)} differs by {power(first.error)} (noise floor {power(first.floor)})"
    return text.replace(numbers, f"learning rate{group} {rates[0]:g} against {rates[1]:g}", 1)


def _spot_text(first: Divergence) -> str:
    spot = first.row.pair.baseline[0] if first.row is not None else None
    if spot is not None and first.site != spot.site and first.between is not None:
        return f"{place(spot.site, spot.port)}, computed by {place(first.site)},"
    if spot is not None and spot.phase == "loss":  # the number itself, whoever computed it
        return place(spot.site, spot.port)
    return place(first.site, first.port)


def _how_same(found: Comparison) -> str:
    if all(row.verdict == "equal" for row in found.rows):
        return "equal to the bit" if found.depth != "summary" else "equal in every statistic"
    worst = max(found.rows, key=_times_floor)
    spot = worst.pair.baseline[0]
    error = worst.distance.relative if worst.distance is not None else math.nan
    return (
        f"within noise: the largest error is {power(error)} at {place(spot.site, spot.port)} "
        f"(noise floor {power(worst.floor.relative)})"
    )


def _times_floor(row: RowComparison) -> float:
    if row.distance is None or not row.distance.relative:
        return 0.0
    return row.distance.relative / row.floor.relative if row.floor.relative else math.inf


def _why_not(found: Comparison) -> str:
    doubtful = [row for row in found.rows if row.verdict in ("cannot-tell", "differs") and row.distance is not None]
    if not doubtful:
        return "too few sites are in both runs"
    spot = doubtful[0].pair.baseline[0]
    distance = doubtful[0].distance
    error = power(distance.relative) if distance is not None else "?"
    return (
        f"{len(doubtful):,} of {len(found.rows):,} spots are apart by more than the {found.floor_source} noise floor, "
        f"but not by enough to be sure; first {place(spot.site, spot.port)} by {error} "
        f"(noise floor {power(doubtful[0].floor.relative)})"
    )


def whys(found: Comparison, blame: Blame | None, n_doubtful: int) -> tuple[str, ...]:
    """Say what the answer rests on, a line each."""
    return tuple(_whys(found, blame, n_doubtful))


def _whys(found: Comparison, blame: Blame | None, n_doubtful: int) -> Iterator[str]:
    first = found.first
    if first is not None and found.status == "diverged":
        yield from _of_first(first)
        if blame is not None and blame.common_factor is not None:
            yield "most gradients differ by this factor and nothing else: clipping, averaging or unscaling"
        if blame is not None and blame.is_gradual:
            yield "its inputs are nearly as far apart, in units of their noise: no single place is to blame"
        yield _of_floor(found, first)
    elif first is not None and blame is not None and blame.is_random:
        yield "everything after it is computed from other values: set dropout to 0 in both runs, and record again"
    elif found.floor_source == "assumed" and found.status == "cannot-tell" and found.n_rows:
        yield "the noise floor is assumed per dtype: measure it with --noise RUN (a repeat of the baseline)"
    if n_doubtful and found.status != "diverged":
        chance = ", which is what chance gives among so many" if found.status == "same" else ""
        yield f"{n_doubtful:,} of {found.n_rows:,} rows are between noise and a difference{chance}"


def _of_first(first: Divergence) -> Iterator[str]:
    spot = first.row.pair.baseline[0] if first.row is not None else None
    if spot is not None and is_given_to_loss(spot):
        yield "what the model was given agrees, what the loss was given does not: other labels, or another shift"
    elif first.phase == "data":
        yield "the batches differ: everything after is computed from other data"
    elif first.phase == "param":
        yield "parameters differ before the first step: another initialisation, or another checkpoint"
    elif first.phase == "optimizer" and first.row is not None and first.row.pair.baseline[0].phase == "param":
        yield f"the parameter agreed before step {first.step}, and its gradient agreed: the update differs"
    elif first.site == "grad_norm":
        yield "every gradient that is in both runs agrees: look at those in one run only, and at how the norm is taken"
    elif first.between is not None:
        last, then = first.between
        yield f"{last} agrees, {then} does not: the code between them is {place(first.site)}'s own"
    elif first.phase == "backward" and first.port.startswith("grad_in"):
        yield (
            f"the gradients of what {place(first.site)} gave agree, that of what it took does not: its own backward, "
            "or that of code around it that uses the same tensor"
        )
    elif first.inputs_agree and first.site != "lr":  # which is given nothing
        yield f"all that was recorded of what {place(first.site)} was given agrees within noise, what it gives does not"
    if first.inputs_agree is None:
        yield "not all inputs of this place were recorded, or they cannot be judged"


def _of_floor(found: Comparison, first: Divergence) -> str:
    row = first.row
    source = row.floor.source if row is not None else found.floor_source
    if source in ("repeats", "calibration"):
        n = row.floor.n_samples if row is not None else 0
        return (
            f"the noise floor was measured ({source}, {n:,} samples); an error counts from "
            f"{counts_from(source, found):.3g} times it on, among {found.n_noisy:,} rows"
        )
    if source == "rounding":
        return (
            "all before it is equal to the bit: the noise floor is what rounding can do; an error counts from "
            f"{counts_from(source, found):.3g} times it on"
        )
    if source == "none":
        return "values that a program is given have no noise"
    return "the noise floor is assumed per dtype; an error counts from 64 times it (measure it with --noise RUN)"
