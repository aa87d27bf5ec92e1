"""Labels of short micro-batches weigh more than those of long ones.

What it means
    Each micro-batch's loss is a mean over its own labels, and the means are averaged. With different numbers of labels
    (padding and prompts are ignored) that is not the mean over all labels of the step: one label of a micro-batch with
    few of them weighs as much as many of another. The gradient is not that of the same batch taken at once.

How it is decided
    The weight of every label is read off what cross-entropy gives back in backward; in MindSpore at audited steps. In a
    step of several micro-batches, all from one line of the program, the micro-batches weigh the same (within 1 %), and
    at least 10 % of the loss belongs to other labels than their number gives. The micro-batches are replayed: it fires,
    once, at the second such step, when the gradient differs by more than 5 % from the one in which each label weighs
    the same. Where nothing can be replayed, the weights alone decide. From 5 % of the loss, and a gradient that differs
    by more than 2 %, it is a note.

What to do
    Sum the loss over labels and divide by the number of labels in the whole step (Transformers: `num_items_in_batch`).

When it is wrong
    When each micro-batch, or each sequence of a micro-batch of one, is meant to weigh the same. Micro-batches that
    differ once, such as the last of a data set, do not count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from hypocenter.detect.engine import rule
from hypocenter.detect.microbatch_rows import LOSS_SHARE, N_LABELS, SITE, TOKEN_GAP, UNEVEN, unevenness
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy

MATTERS, SHOWS = 0.05, 0.02  # relative, of the gradient: a warning, a note
STEPS = 2  # at which it must be seen


@rule("HC331", "config", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the second step at which weights are uneven, or faintly so; it began at the first."""
    counts, shares = _of(window, N_LABELS), _of(window, LOSS_SHARE)
    if not counts or len(counts) != len(shares):
        return
    uneven = _uneven_steps(window.history.rows(SITE, N_LABELS), window.history.rows(SITE, LOSS_SHARE))
    is_told = sum(share >= UNEVEN for share in uneven.values()) >= STEPS
    uneven |= _uneven_steps(counts, shares)
    is_faint = uneven[window.step] < UNEVEN
    alike = sorted(step for step, share in uneven.items() if (share < UNEVEN) is is_faint)
    if len(alike) != STEPS or is_told:
        return
    gap_rows = (*window.history.rows(SITE, TOKEN_GAP), *_of(window, TOKEN_GAP))
    gaps = [r.summary.sum for r in gap_rows if r.step in alike]
    if gaps and max(gaps) <= SHOWS:
        return
    is_note = is_faint or (bool(gaps) and max(gaps) <= MATTERS)
    fewest, most = (pick(counts, key=lambda r: r.summary.sum) for pick in (min, max))
    times = (shares[fewest.microbatch].summary.sum / fewest.summary.sum) / (
        shares[most.microbatch].summary.sum / most.summary.sum
    )
    yield Finding(
        code="HC331",
        kind="config",
        severity="note" if is_note else "warning",
        title=f"labels of micro-batch {fewest.microbatch} weigh {times:.3g} times those of {most.microbatch}",
        step=alike[0],
        rank=window.rank,
        phase="loss",
        site="loss",
        cause="implementation-mismatch",
        limit=SHOWS if is_note else MATTERS,
        actual=max(gaps) if gaps else None,
        why=tuple(_why(counts, gaps, *alike)),
        confidence="proven" if gaps else "likely",
        remedy=Remedy(
            action="divide-by-all-labels",
            text="sum the loss over labels and divide by the number of labels of the whole step",
        ),
    )


def _uneven_steps(counts: Sequence[Reading], shares: Sequence[Reading]) -> dict[int, float]:
    """Return the uneven share of the loss of each step."""
    steps = defaultdict[int, tuple[list[float], list[float]]](lambda: ([], []))
    for at, rows in enumerate((shares, counts)):
        for row in sorted(rows, key=lambda r: r.microbatch):
            steps[row.step][at].append(row.summary.sum)
    return {step: unevenness(*both) for step, both in steps.items() if len(both[0]) == len(both[1])}


def _of(window: Window, port: str) -> list[Reading]:
    return sorted((r for r in window.by_phase["optimizer"] if r.port == port), key=lambda r: r.microbatch)


def _why(counts: Sequence[Reading], gaps: Sequence[float], first: int, last: int) -> Iterator[str]:
    numbers = ", ".join(f"{r.summary.sum:.0f}" for r in counts[:16]) + (", ..." if len(counts) > 16 else "")
    yield f"the loss of each micro-batch is a mean over its own labels, of which there are {numbers} at step {last}"
    ignored = sum(r.call - r.summary.sum for r in counts)
    if ignored > 0:
        yield f"{ignored:.0f} of {sum(r.call for r in counts)} labels are ignored"
    if gaps:
        yield f"replayed, the gradient differs by {max(gaps):.0%} from the one in which every label weighs the same"
    yield f"so at steps {first} and {last}"
