"""One side has no bias, or a bias that was never loaded.

What it means
    Qwen has biases on queries, keys and values and Llama has none; code or a checkpoint of the other kind drops them.

How it is decided
    The first module that differs has a bias on one side only, and the square of its outputs' difference is the number
    of rows times the square of the bias, within the error of the estimate. Or: the bias is zero on one side from the
    start and not on the other.

What to do
    Give the module its bias (attention_bias, add_qkv_bias), and load it.

When it is wrong
    Never seen so; a second difference in the same module makes the sizes disagree, and then nothing is said.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.clues import is_at_start, parameter_card, squared_difference
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit

_SLACK = 1.1  # times the interval of the estimate: the bias is as of the first step that recorded it


@fit("missing-bias")
def missing_bias(case: Case) -> Fit | None:
    """A bias that only one side adds."""
    row = case.row
    if row is None:
        return None
    if is_at_start(case):
        sizes = row.baseline.absmax, row.candidate.absmax
        if not case.first.site.endswith("bias") or all(sizes) or not any(sizes):
            return None
        side = "candidate" if not sizes[1] else "baseline"
        return _answer(f"{case.first.site} is zero in the {side}", side, 1.0)
    return _unmatched(case) if case.first.phase == "forward" and case.inputs_agree else None


def _unmatched(case: Case) -> Fit | None:
    row = case.row
    names = f"{case.first.site}.bias", f"{case.first.candidate_site}.bias"
    cards = [parameter_card(case, name, side=side) for side, name in enumerate(names)]
    known = [card for card in cards if card is not None]
    if row is None or len(known) != 1 or not known[0].n:
        return None
    side = "candidate" if cards[1] is None else "baseline"
    wanted = row.baseline.n / known[0].n * known[0].sumsq
    _, low, high = squared_difference(row)
    if not low / _SLACK <= wanted <= high * _SLACK:
        return None
    return _answer(f"{case.first.site} has no bias in the {side}", side, 1.0)


def _answer(text: str, side: str, explained: float) -> Fit:
    return Fit(
        name="missing-bias", cause="implementation-mismatch", explained=explained, confidence="proven", text=text,
        values={"side": side}, fix=f"give the {side} the bias, and load it",
    )  # fmt: skip
