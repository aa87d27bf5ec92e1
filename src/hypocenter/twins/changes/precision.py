"""Mixed precision changes nothing but rounding.

What it means
    Autocast computes in a short format what bears it. What does not bear it (a large sum, a small difference, a long
    product of small numbers) is off by far more than the format's rounding.

How it is decided
    The program as it is against the same with every region of autocast in float32. Every value may differ by the
    rounding of the short format, whose size replays measure; the first that differs by more is named.

What to do
    Compute the named module in float32 (`with torch.autocast(device, enabled=False)`): `hypocenter cure` finds the
    smallest such set.

When it is wrong
    A model whose weights are in a short format themselves is not changed.
"""

from __future__ import annotations

from dataclasses import replace

from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import NotApplicableError


@change("precision", order=10)
def precision(asked: Asked) -> Twin:
    """Compare autocast as it is with float32."""
    config, make = recording(asked, asked.steps, calibrated=True), asked.runs.make
    own = make("mixed", config, words=asked.first_words).recorded()
    whole = make(
        "float32", replace(config, change=("precision=float32",), calibrate="never"), words=asked.second_words
    ).recorded()
    if "precision" not in whole.noted:
        raise NotApplicableError("the program has no region of autocast", where="hypocenter twin precision")
    again = make("mixed-again", config, words=asked.first_words)
    judged = judge(own, again, whole, is_exact=False)
    found = answer(judged, (own, again, whole), "with autocast in float32")
    return replace(found, cause="precision-dependence", confidence="possible") if found.status == "differs" else found
