"""The labels are other ones: shifted by another number of tokens, as a rule.

What it means
    Some code shifts labels inside the model, some outside. Done twice or not at all the loss is of another task, and
    nothing but its value tells.

How it is decided
    The loss is the first to differ while everything up to the logits agrees; the gradients of the logits are apart by
    what other labels make of them: the gradient of one token is (probabilities - label) / N, so that the square of the
    difference is 2 / N, and its largest element at most 1 / N. Or: labels given to the model hold the same numbers but
    for a few at the ends.

What to do
    Shift exactly once: HF models shift inside (pass labels = input_ids); Megatron's data sets shift outside.

When it is wrong
    When labels are others for another reason: another data set, another mask of the prompt.
"""

from __future__ import annotations

import math

from hypocenter.compare.case import Case, PairedRow
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import squared_difference
from hypocenter.compare.fitting import fit
from hypocenter.nouns import Confidence

_NEAR = 0.35  # relative: a label may be likely already, a few labels may be the same
_SHARE = 0.15  # of the sum of labels: what a shift by some tokens drops of rows of some dozens


@fit("label-shift")
def label_shift(case: Case) -> Fit | None:
    """Other labels below the same logits, or labels that were moved."""
    row = case.row
    if row is None:
        return None
    if case.first.phase == "data":
        return _of_given(row) if "label" in row.spot.port.lower() else None
    if not (case.first.phase == "loss" or _is_of_loss(row)) or not case.inputs_agree:
        return None
    gradients = [one for one in case.rows(phase="backward", port="grad_out") if _is_of_logits(case, one)]
    if not gradients or not _are_of_other_labels(gradients[0]):
        return None
    return _answer(
        "the logits agree and their gradients are apart by as much as other labels make: the labels are not shifted by "
        "the same number of tokens", "likely",
    )  # fmt: skip


def _of_given(row: PairedRow) -> Fit | None:
    a, b = row.baseline, row.candidate
    if a.n != b.n or abs(a.sum - b.sum) > _SHARE * max(abs(a.sum), abs(b.sum)):
        return None
    return _answer(f"{row.spot.port} holds nearly the same numbers: shifted by another number of tokens", "possible")


def _is_of_loss(row: PairedRow) -> bool:
    """Return whether the row is the gradient that the code of the loss gave back to the model."""
    return row.spot.phase == "backward" and not row.spot.site and row.spot.port.startswith("grad_out")


def _is_of_logits(case: Case, row: PairedRow) -> bool:
    """Return whether the row is the gradient of the output of the module that was called last."""
    outputs = [one for one in case.rows(phase="forward", port="out[0]") if one.spot.site]
    if not outputs:
        return False
    last = max(outputs, key=lambda one: one.comparison.order)
    return row.spot.site == last.spot.site and row.baseline.n == last.baseline.n


def _are_of_other_labels(row: PairedRow) -> bool:
    a, b = row.baseline, row.candidate
    if not a.absmax or not b.absmax or abs(a.absmax / b.absmax - 1.0) > _NEAR:
        return False
    n_tokens = 1.0 / max(a.absmax, b.absmax)
    _, low, high = squared_difference(row)
    wanted = 2.0 / n_tokens
    return math.isfinite(high) and low * (1.0 - _NEAR) <= wanted <= high * (1.0 + _NEAR)


def _answer(text: str, confidence: Confidence) -> Fit:
    return Fit(
        name="label-shift", cause="data-mismatch", explained=1.0, confidence=confidence, text=text,
        fix="shift labels exactly once, in the model or in the data",
    )  # fmt: skip
