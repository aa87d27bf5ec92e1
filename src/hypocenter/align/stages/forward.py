"""Stage 2: the loss of the first step, and with it the whole forward pass."""

from __future__ import annotations

from dataclasses import replace

from hypocenter.align.alignment import StageResult
from hypocenter.align.context import Context, everything
from hypocenter.align.means import mean_of_means
from hypocenter.align.spots import is_batch, is_forward, is_loss, is_weight
from hypocenter.align.verdicts import of_comparison, result, same_size
from hypocenter.compare.comparison import Comparison, Spot

_PHASES = ("data", "param", "forward", "loss")
_NEXT = "hypocenter diff {0} {1} --steps 0 --report forward.html"


def judge(context: Context) -> StageResult:
    """Failed where a module's output, or the loss, leaves the baseline's by more than its measured noise."""
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
