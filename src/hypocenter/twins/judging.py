"""Two runs compared, on the ground of a third: the first once more, which tells what two good runs are apart by.

Where the program repeats itself to the bit, a change that must not matter leaves every bit too. A change that forms
sums in another order is judged by what an ulp makes of the values (`run --calibrate`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypocenter.compare.comparison import Comparison, Divergence, Matching, Spot
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.sentences import place, power
from hypocenter.errors import HypocenterError
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.twins.answer import NamedRun, Place, Twin
from hypocenter.twins.runs import Made, from_here

Wanted = Callable[[Spot], bool]


class NotRepeatableError(HypocenterError):
    """Two runs without any change are apart: nothing can be said of one with a change."""

    slug = "does-not-repeat-itself"
    exit_code = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A comparison, and whether it was exact."""

    comparison: Comparison
    is_exact: bool  # the program repeats itself to the bit, and so must the changed one

    @property
    def is_apart(self) -> bool:
        """Whether the runs part. In an exact comparison different random numbers are a difference too."""
        found = self.comparison
        return found.status == "diverged" or (self.is_exact and found.first is not None)


def judge(
    baseline: Made, again: Made, candidate: Made, *, is_exact: bool, shift: int | None = 0, wanted: Wanted | None = None
) -> Judged:
    """Compare what a change made with what is right.

    Args:
        again: the baseline once more.
        is_exact: the change leaves every bit where the program repeats itself.
        shift: what to add to a step of the baseline for the candidate's; None: it is searched.
        wanted: which values are compared, in the baseline's names; all when not given.

    Raises:
        NotRepeatableError: the baseline does not repeat itself.
    """
    first, second, changed = (open_run(made.recorded().directory) for made in (baseline, again, candidate))
    repeats = is_repeated(first, second)
    noise = () if repeats else (second,)
    options = Options(noise=noise, shift=shift, is_exact=is_exact and repeats)
    found = compare_runs(first, changed, options=options)
    if wanted is not None:
        matching = found.matching
        kept = tuple(pair for pair in matching.pairs if all(map(wanted, pair.baseline)))
        found = compare_runs(first, changed, options=replace(options, matching=Matching(pairs=kept)))
    return Judged(comparison=found, is_exact=options.is_exact)


def is_repeated(first: RecordedRun, second: RecordedRun) -> bool:
    """Return whether two runs without a change are equal to the bit.

    Raises:
        NotRepeatableError: they are apart by more than rounding.
    """
    own = compare_runs(first, second, options=Options(shift=0, is_exact=True))
    if own.first is None and own.status == "same":
        return True
    apart = compare_runs(first, second, options=Options(shift=0))
    if apart.first is None:
        return False
    where = apart.first
    raise NotRepeatableError(
        "the program does not repeat itself",
        where=f"step {where.step}, {where.phase}: {place(where.site, where.port)}",
        why="two runs without any change part there: of a change nothing can be said",
        fix="find out why with `hypocenter twin nothing`, or add --deterministic",
    )


def first_of(found: Divergence, *, is_exact: bool) -> Place:
    """Return the place at which the two runs part."""
    return Place(
        step=found.step,
        microbatch=found.microbatch,
        phase=found.phase,
        site=found.site,
        port=found.port,
        error=found.error,
        floor=0.0 if is_exact else found.floor,
        source=found.source,
    )


def answer(judged: Judged, runs: tuple[Made, ...], what: str) -> Twin:
    """Return the plain answer: the same, or where they part first. Changes add what it means.

    Args:
        runs: all that were made, the baseline first, the candidate last.
        what: the change in words, such as `with 2 workers in place of 0`.
    """
    found = judged.comparison
    named = tuple(NamedRun(name=one.name, path=str(one.directory)) for one in runs)
    facts = Twin(
        runs=named,
        n_steps=found.n_steps,
        n_rows=found.n_rows,
        notes=found.notes,
        confidence=found.confidence,
        floor_source="bits" if judged.is_exact else found.floor_source,
        next=f"hypocenter diff {from_here(runs[0].directory)} {from_here(runs[-1].directory)}",
    )
    if judged.is_apart and found.first is not None:
        first = first_of(found.first, is_exact=judged.is_exact)
        why = tuple(line for line in found.why if not (judged.is_exact and "noise floor" in line))
        return replace(
            facts,
            status="differs",
            first=first,
            why=why,
            fix=found.fit.fix if found.fit is not None else "",
            sentence=f"differs: {what}, {_parts(found, judged.is_exact)}",
        )
    if found.status == "same":
        equal = judged.is_exact or all(row.verdict == "equal" for row in found.rows)
        steps = f"{found.n_steps:,} step{'s' if found.n_steps != 1 else ''}"
        how = "is equal to the bit" if equal else "is within the measured noise"
        if not equal and found.floor_source == "assumed":
            how = "is within the assumed noise"
        return replace(
            facts,
            status="same",
            confidence="proven" if equal else "likely",
            sentence=f"same: {what}, every one of {found.n_rows:,} values in {steps} {how}",
        )
    return replace(
        facts,
        status="cannot-tell",
        why=found.why,
        sentence=f"cannot tell: {what}, "
        + (found.sentence.removeprefix("cannot tell: ") or "nothing could be compared"),
    )


def gradient_factor(found: Comparison, baseline: Made, candidate: Made) -> float | None:
    """Return how many times longer all gradients of the first step that parts are in the candidate; None: not alike.

    Gradients may be clipped before they are seen, which shortens the longer ones; their norm is taken before that.
    """
    first = found.first
    row = first.row if first is not None else None
    if first is None or row is None or row.distance is None or row.distance.scale is None:
        return None
    norms = [
        next(
            (record.grad_norm for _, record in open_run(made.directory).step_records() if record.step == first.step),
            None,
        )
        for made in (baseline, candidate)
    ]
    return norms[1] / norms[0] if norms[0] and norms[1] else row.distance.scale


def _parts(found: Comparison, is_exact: bool) -> str:
    first = found.first
    assert first is not None
    where = f"step {first.step}, {first.phase}: {place(first.site, first.port)}"
    floor = "two runs without it are equal to the bit" if is_exact else f"noise floor {power(first.floor)}"
    if first.row is not None and first.row.pair.baseline[0].port in ("digest", "field"):
        return f"the first to part is {where}, which holds other values"
    return f"the first to part is {where} by {power(first.error)} ({floor})"
