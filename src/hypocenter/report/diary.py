"""The loss-scale diary in lines: stretches of steps in which nothing happened, and each step in which something did."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.detect.diary import SCALED_GRAD, Entry, entry_of, share_nonfinite
from hypocenter.nouns import Reading, StepRecord, replace
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.report import wording
from hypocenter.report.columns import aligned
from hypocenter.report.selection import Selection, select

MOST_NAMED = 3  # parameters in one line
MOST_KEPT = 8  # of the largest gradients of a stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A parameter's gradient that was seen in a step, with the loss scale in it."""

    param: str
    share_nonfinite: float | None  # of its elements; None: not known
    largest: float  # finite magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Neighbouring steps of one rank at one scale with one outcome; a step with an overflow stands alone."""

    first_step: int
    last_step: int
    rank: int
    scaler: str
    scale: float
    growth_tracker: int | None  # at the last step: steps without overflow since the scale changed
    growth_interval: int | None
    n_optimizers: int
    n_skipped: int
    found_inf: tuple[str, ...]  # devices
    culprits: tuple[Seen, ...]  # not finite, worst share first
    nearest: tuple[Seen, ...]  # finite, largest first; of a stretch the largest seen


def stretches(table: pa.Table, records: Sequence[tuple[int, StepRecord]]) -> list[Stretch]:
    """Return the diary of every rank in `table` that has one, step by step.

    Args:
        table: readings, with `rank`.
        records: every (rank, step record): a scaler that did not tell may be known to have skipped.
    """
    rows = table.filter(pc.and_(pc.equal(table["phase"], "scaler"), pc.invert(table["replay"])))
    by_step: dict[tuple[int, int], list[Reading]] = defaultdict(list)
    readings = readings_from(rows.select(READINGS.names))
    for rank, reading in zip(rows["rank"].to_pylist(), readings, strict=True):
        by_step[rank, reading.step].append(reading)
    skipped = {(rank, record.step) for rank, record in records if record.skipped}
    found: list[Stretch] = []
    for key in sorted(by_step):
        entry = entry_of(by_step[key])
        if entry is None:
            continue
        step = _of_step(entry, key[0], is_skipped=key in skipped)
        if found and _goes_on(found[-1], step):
            step = _joined(found.pop(), step)
        found.append(step)
    return found


def only_of(table: pa.Table, site: str) -> pa.Table:
    """Return the table with the scaled gradients of chosen parameters alone.

    Raises:
        UnknownNameError: `site` is the name or glob of none of them.
    """
    is_gradient = pc.equal(table["port"], SCALED_GRAD)
    chosen = select(table.filter(is_gradient), Selection(site=site))
    return pa.concat_tables([table.filter(pc.invert(is_gradient)), chosen])


def _of_step(entry: Entry, rank: int, *, is_skipped: bool) -> Stretch:
    return Stretch(
        first_step=entry.step,
        last_step=entry.step,
        rank=rank,
        scaler=entry.kind,
        scale=entry.scale,
        growth_tracker=_whole(entry.facts.get("growth_tracker")),
        growth_interval=_whole(entry.facts.get("growth_interval")),
        n_optimizers=entry.n_optimizers,
        n_skipped=max(entry.n_skipped, int(is_skipped)),
        found_inf=entry.found_inf,
        culprits=tuple(map(_seen, entry.culprits)),
        nearest=tuple(map(_seen, entry.near)),
    )


def _whole(value: float | None) -> int | None:
    return None if value is None or not math.isfinite(value) else int(value)


def _seen(row: Reading) -> Seen:
    values = row.summary
    share = share_nonfinite(values.n, values.n_nonfinite, row.shape)
    return Seen(param=row.site, share_nonfinite=share, largest=values.absmax)


def _goes_on(before: Stretch, step: Stretch) -> bool:
    calm = not (before.n_skipped or step.n_skipped or before.culprits or step.culprits)
    return calm and (before.rank, before.scale, before.scaler) == (step.rank, step.scale, step.scaler)


def _joined(before: Stretch, step: Stretch) -> Stretch:
    largest: dict[str, Seen] = {}
    for seen in (*before.nearest, *step.nearest):
        if seen.param not in largest or largest[seen.param].largest < seen.largest:
            largest[seen.param] = seen
    nearest = sorted(largest.values(), key=lambda seen: -seen.largest)[:MOST_KEPT]
    return replace(step, first_step=before.first_step, nearest=tuple(nearest))


def in_words(found: Sequence[Stretch]) -> Iterator[str]:
    """Yield a heading and one line per stretch; ranks are named when there are several."""
    has_ranks = len({stretch.rank for stretch in found}) > 1
    rows = [("steps", *(["rank"] if has_ranks else []), "scale", "without overflow", "update", "gradients, scale in")]
    for stretch in found:
        rank = [str(stretch.rank)] if has_ranks else []
        rows.append(
            (_steps(stretch), *rank, scale(stretch.scale), _growth(stretch), _outcome(stretch), _named(stretch))
        )
    yield from aligned(rows)


def scale(value: float) -> str:
    """Return a loss scale as text; large or small powers of two as `2^22`, since nobody reads 4.19e6."""
    if not 0.0 < value < math.inf:
        return wording.number(value)
    exponent = math.log2(value)
    return f"2^{exponent:.0f}" if exponent.is_integer() and not -6 <= exponent <= 16 else wording.number(value)


def percent(share: float | None) -> str:
    """Say how many of a gradient's elements were not finite: `all`, `25 %`, `< 0.01 %`; `some` if that is not known."""
    if share is None:
        return "some"
    return "all" if share >= 1 else f"{100 * share:.2g} %" if share >= 1e-4 else "< 0.01 %"


def _steps(stretch: Stretch) -> str:
    first, last = stretch.first_step, stretch.last_step
    return str(first) if first == last else f"{first} to {last}"


def _growth(stretch: Stretch) -> str:
    if stretch.growth_tracker is None:
        return ""
    of = "" if stretch.growth_interval is None else f" of {stretch.growth_interval}"
    return f"{stretch.growth_tracker}{of}"


def _outcome(stretch: Stretch) -> str:
    if not stretch.n_skipped:
        return "made"
    return "skipped" if stretch.n_optimizers == 1 else f"{stretch.n_skipped} of {stretch.n_optimizers} skipped"


def _named(stretch: Stretch) -> str:
    if not stretch.culprits:
        return ", ".join(_near(seen) for seen in stretch.nearest[:1])
    named = ", ".join(_bad(seen) for seen in stretch.culprits[:MOST_NAMED])
    left_out = len(stretch.culprits) - MOST_NAMED
    return f"{named}, and {left_out:,} more" if left_out > 0 else named


def _bad(seen: Seen) -> str:
    finite = f", largest finite {wording.number(seen.largest)}" if seen.largest else ""
    return f"{wording.clean(seen.param)} ({percent(seen.share_nonfinite)} not finite{finite})"


def _near(seen: Seen) -> str:
    return f"largest seen {wording.number(seen.largest)} in {wording.clean(seen.param)}"
