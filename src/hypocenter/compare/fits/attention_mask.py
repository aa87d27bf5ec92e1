"""The attention mask shows more or fewer tokens.

What it means
    Padding is on another side, a token more is masked, or one side has no mask for documents in a packed sequence.

How it is decided
    The first input that differs is a mask: its sum says how many places more are visible on one side.

What to do
    Compare how both programs make the mask from lengths or from token ids, and which tokens count as padding.

When it is wrong
    It is a fact about the input; whether the mask has an effect shows in what comes after.
"""

from __future__ import annotations

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fitting import fit


@fit("attention-mask")
def attention_mask(case: Case) -> Fit | None:
    """A mask among the inputs that differs."""
    row = case.row
    if row is None or row.spot.phase not in ("data", "forward") or "mask" not in f"{row.spot.port} {case.first.site}":
        return None
    if not row.spot.port.startswith("in") and "mask" not in case.first.site:
        return None
    apart = row.candidate.sum - row.baseline.sum
    more = f"shows {abs(apart):g} places {'more' if apart > 0 else 'fewer'} in the candidate"
    text = more if apart and row.baseline.min >= 0 else "hides other places in the candidate"
    return Fit(
        name="attention-mask", cause="data-mismatch", explained=1.0, confidence="proven",
        text=f"{row.spot.port} {text}", values={"more": apart},
        fix="make the mask by the same rule on both sides",
    )  # fmt: skip
