"""Whether the loss is a mean of means on one side, and one mean over all labels on the other.

With n_r labels on rank (or micro-batch) r of k, a mean of k means weighs each of them by 1 / (k n_r), and one mean
over all by 1 / (n_1 + ... + n_k). The gradient of the logits is f_r = (n_1 + ... + n_k) / (k n_r) times as large,
another factor on each rank, and the mean of 1 / f_r is 1.
"""

from __future__ import annotations

import math

from hypocenter.align.context import Context
from hypocenter.align.plan import SideName

_UNLIKE = 1e-3  # relative: factors that are nearer than that are one
_CLOSE = 2e-3  # relative, of the mean of the inverse factors: sums of gradients in bfloat16


def mean_of_means(context: Context) -> str | None:
    """In words with the numbers; None when it is not so, or ranks and micro-batches are not those of the other side."""
    mine, other = _sizes(context, "baseline"), _sizes(context, "candidate")
    if len(mine) < 2 or mine.keys() != other.keys() or not all(mine.values()):
        return None
    factors = {place: other[place] / mine[place] for place in mine}
    if max(factors.values()) <= min(factors.values()) * (1 + _UNLIKE) or not all(factors.values()):
        return None
    for side, found in (("candidate", factors), ("baseline", {p: 1 / f for p, f in factors.items()})):
        inverse = sum(1 / f for f in found.values()) / len(found)
        if math.isclose(inverse, 1.0, rel_tol=_CLOSE):
            ranks = len({rank for rank, _ in found})
            what = "ranks" if ranks > 1 else "micro-batches"
            numbers = ", ".join(f"{factor:.4g}" for factor in found.values())
            return (
                f"the loss of the {side} is a mean of the {what}' own means, the other's one mean over all labels: the "
                f"gradients of the logits are {numbers} times as large, as unlike numbers of labels make it"
            )
    return None


def _sizes(context: Context, side: SideName) -> dict[tuple[int, int], float]:
    """Norm of the gradient of the model's output in the first step, by rank and micro-batch."""
    run = context.run(side, "steps")
    found: dict[tuple[int, int], float] = {}
    for rank in run.ranks:
        for row in run.readings(steps=[0], phase="backward", rank=rank):
            if row.site == "" and row.port.startswith("grad_out") and not row.replay:
                found.setdefault((rank, row.microbatch), math.sqrt(row.summary.sumsq))
    return found
