"""Labels of a rank that has few of them weigh more than those of another.

What it means
    Each rank's loss is a mean over its own labels, and the ranks' gradients are averaged. With different numbers of
    labels (padding and prompts are ignored) that is not the mean over all labels of the batch: one label of a rank with
    few of them weighs as much as many of another. The gradient depends on how the batch was dealt out to the ranks.

How it is decided
    At steps of `--audit`, for replicas whose gradients are sums over the ranks (as in HC308). The weight of a rank's
    labels in its own loss is read off what cross-entropy gives back in backward, that of the rank in what is used off
    the sketches of both. The ranks weigh the same (within 1 %), and at least 10 % of the loss belongs to other labels
    than their number gives. It fires, once, at the second such step, when the gradient differs by more than 5 %, by
    those sketches, from the one in which each label weighs the same. It began at the first step at which ranks with
    other numbers of labels weighed the same, however little that mattered.

What to do
    Sum the loss over labels, divide by the number of labels on all ranks (an all-reduce of one number), and multiply by
    the number of ranks where DDP or FSDP averages. Transformers: `average_tokens_across_devices`.

When it is wrong
    When each sequence, or each rank's part, is meant to weigh the same. Losses that are no cross-entropy are not
    judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.law_rows import LABELS, MADE
from hypocenter.detect.law_sketches import LawSketches, is_replica, law_sketches, weights_of_ranks
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding, Remedy

CODE = "HC337"
SAME, UNEVEN, MATTERS = 1.01, 0.1, 0.05  # as of micro-batches: label_rows, HC331
STEPS = 2


@group_rule(CODE, "config", severity="warning", reads=("law",), asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report at the second step at which it matters that labels of the ranks weigh unequally."""
    steps: list[int] = panel.history.notes[CODE].setdefault("steps", [])
    faint: list[int] = panel.history.notes[CODE].setdefault("faint", [])  # steps in a row at which they do at all
    table = panel.where(port=MADE, site=LABELS)
    if table.num_rows < 2 or len(steps) >= STEPS:
        return
    rows = zip(*(table[name].to_pylist() for name in ("rank", "n", "sum")), strict=True)
    labels = {rank: (n, weight) for rank, n, weight in rows}
    ranks = sorted(labels)
    parameters = law_sketches(panel)
    looked = {name: each for name, each in parameters.items() if each.used and is_replica(each, panel.ranks)}
    weights = weights_of_ranks(looked, ranks) if looked and tuple(ranks) == tuple(sorted(panel.ranks)) else None
    if not weights:
        return
    shares = [weight * labels[rank][1] for rank, weight in zip(ranks, weights, strict=True)]
    counts = [labels[rank][0] for rank in ranks]
    if min(shares) <= 0.0 or min(counts) < 1:
        return
    if max(shares) > SAME * min(shares):
        faint.clear()
        return
    if max(counts) > SAME * min(counts):
        faint.append(panel.step)
    right = [n / sum(counts) / (share / sum(shares)) for n, share in zip(counts, shares, strict=True)]
    excess = sum(abs(factor - 1.0) for factor in right) / len(ranks) / 2
    gap = _gap(looked, dict(zip(ranks, zip(weights, right, strict=True), strict=True)))
    if excess < UNEVEN or gap <= MATTERS:
        return
    steps.append(panel.step)
    if len(steps) == STEPS:
        yield _finding(min(faint), steps, dict(zip(ranks, counts, strict=True)), gap)


def _gap(looked: Mapping[str, LawSketches], factors: Mapping[int, tuple[float, float]]) -> float:
    """Return the relative difference between the gradient by the ranks' weights and the one with corrected weights.

    Args:
        factors: by rank: its weight, and by what it would have to be multiplied.
    """
    off = whole = 0.0
    for each in looked.values():
        used = np.sum([weight * each.made[rank] for rank, (weight, _) in factors.items()], axis=0)
        right = np.sum([weight * factor * each.made[rank] for rank, (weight, factor) in factors.items()], axis=0)
        off += float(np.sum((used - right) ** 2))
        whole += float(np.sum(right**2))
    return (off / whole) ** 0.5 if whole else 0.0


def _finding(began: int, steps: Sequence[int], counts: Mapping[int, int], gap: float) -> Finding:
    fewest, most = (pick(counts, key=lambda rank: counts[rank]) for pick in (min, max))
    earlier = (
        f"; at step {began} ranks with other numbers of labels weighed the same already" if began < steps[0] else ""
    )
    numbers = ", ".join(str(n) for n in list(counts.values())[:16]) + (", ..." if len(counts) > 16 else "")
    return Finding(
        code=CODE, kind="config", severity="warning", step=began, rank=fewest, phase="loss", site="loss",
        title=f"labels of rank {fewest} weigh {counts[most] / counts[fewest]:.3g} times those of rank {most}",
        cause="implementation-mismatch", limit=MATTERS, actual=gap, confidence="proven",
        why=(
            f"the loss of each rank is a mean over its own labels, of which there are {numbers} at step {steps[-1]}",
            f"the gradient differs by {gap:.0%} from the one in which every label weighs the same",
            f"so at steps {' and '.join(map(str, steps))}{earlier}",
        ),
        ranks=tuple(counts),
        remedy=Remedy(
            action="divide-by-all-labels",
            text="sum the loss over labels, divide by the number of labels of all ranks (all-reduce it), multiply by "
            "the number of ranks where DDP or FSDP averages",
        ),
    )  # fmt: skip
