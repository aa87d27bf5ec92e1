"""Stage 2: the loss of the first step, and with it the whole forward pass.

Whether the loss is a mean of means on one side, and one mean over all labels on the other.

With n_r labels on rank (or micro-batch) r of k, a mean of k means weighs each of them by 1 / (k n_r), and one mean
over all by 1 / (n_1 + ... + n_k). The gradient of the logits is f_r = (n_1 + ... + n_k) / (k n_r) times as large,
another factor on each rank, and the mean of 1 / f_r is 1.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hypocenter.align.alignment import StageResult, of_comparison, result, same_size
from hypocenter.align.context import Context, everything, is_batch, is_forward, is_loss, is_weight
from hypocenter.align.plan import SideName
from hypocenter.compare.comparison import Comparison, Spot

_PHASES = ("data", "param", "forward", "loss")
_NEXT = "hypocenter diff {0} {1} --steps 0 --report forward.html"
_UNLIKE = 1e-3  # relative: factors that are nearer than that are one
_CLOSE = 2e-3  # relative, of the mean of the inverse factors: sums of gradients in bfloat16


def judge(context: Context) -> StageResult:
    """Fail where a module's output, or the loss, leaves the baseline's by more than its measured noise."""
    whole = context.compare(everything, 0, name="everything")  # causes show in the backward pass too
    found = whole if _is_before_backward(whole) else context.compare(_is_wanted, 0, name="forward")
    losses = [context.loss(side, "steps", 0) for side in ("baseline", "candidate")]
    row = next((row for row in found.rows if is_loss(row.pair.baseline[0])), None)
    words = "the loss was not recorded on both sides"
    figures: dict[str, object] = {"loss": losses, "depth": found.depth, "rows": found.n_rows}
    if row is not None and row.distance is not None:
        figures |= {"error": row.distance.relative, "floor": row.floor.relative, "verdict": row.verdict}
        words = f"loss {losses[0]:.6g} and {losses[1]:.6g}: {same_size(row)}"
    paths = [context.shown(side, "steps") for side in ("baseline", "candidate")]
    again = _NEXT.format(*paths)
    if found.status == "same":
        n = sum(spot.phase == "forward" for one in found.rows for spot in one.pair.baseline[:1])
        return result(2, "passed", f"{words}; {n} inputs and outputs of modules agree", figures=figures,
                      why=tuple(found.notes))  # fmt: skip
    failed = of_comparison(2, found, figures=figures)
    if failed.phase == "loss" and failed.cause == "unknown" and (means := mean_of_means(context)) is not None:
        failed = replace(
            failed, cause="implementation-mismatch", confidence="likely", why=(means, *failed.why),
            next=("sum the loss over labels and divide by the number of labels of all ranks and micro-batches",),
        )  # fmt: skip
    return replace(failed, why=(words, *failed.why), next=(*failed.next, again))


def _is_before_backward(found: Comparison) -> bool:
    return found.status == "diverged" and found.first is not None and found.first.phase in _PHASES


def _is_wanted(spot: Spot) -> bool:
    return is_forward(spot) or is_batch(spot) or is_weight(spot)


def mean_of_means(context: Context) -> str | None:
    """Say with numbers that one side's loss is a mean of means; None if not, or if ranks or micro-batches differ."""
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
    """Return the norm of the gradient of the model's output in the first step, by rank and micro-batch."""
    run = context.run(side, "steps")
    found: dict[tuple[int, int], float] = {}
    for rank in run.ranks:
        for row in run.readings(steps=[0], phase="backward", rank=rank):
            if row.site == "" and row.port.startswith("grad_out") and not row.replay:
                found.setdefault((rank, row.microbatch), math.sqrt(row.summary.sumsq))
    return found
