"""Dropout is on, or of another rate, on one side.

What it means
    One program trains with dropout and the other without; or the random numbers are others.

How it is decided
    The first module that differs is a dropout, or has a setting with "drop" in its name; that setting, or whether the
    module trains, differs between the runs. When both have the same rate, only the random numbers differ.

What to do
    Set all dropouts to 0 in both runs to compare them, and to the same rate to train.

When it is wrong
    It is a fact about the place itself.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import attributes_apart, say
from hypocenter.compare.fitting import fit


@fit("dropout")
def dropout(case: Case) -> Fit | None:
    """A rate that differs, or training against evaluation."""
    mine, other = case.modules
    if mine is None or other is None or case.first.phase != "forward" or not case.inputs_agree:
        return None
    is_dropout = "drop" in mine.kind.lower()
    rates = attributes_apart(case, ("drop",)) or (attributes_apart(case, ("p",)) if is_dropout else {})
    if rates:
        name, (left, right) = next(iter(sorted(rates.items())))
        text = f"{name} of {case.first.site} is {say(left)} in the baseline and {say(right)} in the candidate"
        return _answer("config-mismatch", text)
    if mine.training != other.training and (is_dropout or any("drop" in name for name in mine.attributes)):
        which = "candidate" if other.training else "baseline"
        return _answer(
            "config-mismatch", f"{case.first.site} drops values in the {which} alone: train() against eval()"
        )
    rate = mine.attributes.get("p")
    if is_dropout and mine.training and isinstance(rate, float) and rate > 0:
        return _answer("rng-desync", f"{case.first.site} drops {rate:g} of the values on both sides, and not the same")
    return None


def _answer(cause: str, text: str) -> Fit:
    return Fit(
        name="dropout", cause=cause, explained=1.0, confidence="proven", text=text,
        fix="set dropout to 0 on both sides, and compare again",
    )  # fmt: skip
