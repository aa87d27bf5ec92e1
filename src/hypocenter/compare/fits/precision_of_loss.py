"""The loss is computed in a shorter format on one side.

What it means
    Logits agree, and cross-entropy takes them in bfloat16 or float16 on one side: the loss, and with it every gradient,
    is rounded to two or three digits.

How it is decided
    The loss is the first to differ while the logits agree. The gradient of the logits has no more digits than a short
    format has on one side only (or is in that format), and losses and gradients differ by what that format rounds.

What to do
    Cast the logits to float32 before the loss on both sides.

When it is wrong
    When the loss differs for a second reason of the same size.
"""

from __future__ import annotations

from hypocenter.compare.case import Case, PairedRow
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import held_in
from hypocenter.compare.fitting import fit
from hypocenter.formats import FORMATS

_EPS = {name: FORMATS[name].eps for name in ("float16", "bfloat16")}
_TIMES = 16.0  # times eps: rounding of logits, probabilities, and a sum


@fit("precision-of-loss")
def precision_of_loss(case: Case) -> Fit | None:
    """A short format in the backward pass of the loss, on one side."""
    row = case.row
    if row is None or case.first.phase != "loss" or row.comparison.distance is None or not case.inputs_agree:
        return None
    logits = next((one for one in case.rows(phase="backward", site="", port="grad_out") if _is_told(one)), None)
    if logits is None or logits.comparison.distance is None:
        return None
    mine, other = held_in(logits.baseline), held_in(logits.candidate)
    short = {mine, other} & _EPS.keys()
    if mine == other or len(short) != 1:
        return None
    most = _EPS[short.pop()] * _TIMES
    if max(row.comparison.distance.relative, logits.comparison.distance.relative) > most:
        return None
    return Fit(
        name="precision-of-loss", cause="precision-mismatch", explained=1.0, confidence="likely",
        text=f"the loss is computed in {mine} in the baseline and in {other} in the candidate: the gradient of the "
        "logits has no more digits",
        values={"baseline": mine, "candidate": other}, fix="cast the logits to float32 before the loss on both sides",
    )  # fmt: skip


def _is_told(row: PairedRow) -> bool:
    return row.baseline.n > 1 and row.baseline.sumsq > 0
