"""An infinite or NaN value was multiplied by zero, as a mask.

What it means
    0 × inf and 0 × NaN are NaN: multiplying by a mask of zeros does not remove what is excluded, it spreads it.
    The excluded value was not finite on purpose or by the data (missing observations, log of a padded
    position).

How it is decided
    On the way to the non-finite loss there is a product whose other factor is exactly 0 at every bad element,
    and the bad value came from the batch, or the line of the product names a mask, or the product's own operand
    holds an infinite constant of the program. The replay shows it: proven.

What to do
    Select instead of multiplying: where(mask, value, 0), or index with the mask before computing the
    loss.

When it is wrong
    When the zeros are not a mask but ordinary values, such as labels: then what made the infinity is the cause,
    and is preferred.
"""

from __future__ import annotations

import re

from hypocenter.diagnose import why
from hypocenter.diagnose.evidence import Evidence, OpFacts, Verdict
from hypocenter.diagnose.operators import MATMUL, PRODUCT, base
from hypocenter.diagnose.rulings import bad_output, floating, has_zero, singular, supported
from hypocenter.diagnose.verdicts import cause


@cause("zero-times-inf", order=50)
def decide(evidence: Evidence) -> Verdict | None:
    """A mask of exact zeros multiplied onto something that is not finite, in forward."""
    product = evidence.multiplier_zero
    if product is not None and product.phase != "backward" and not evidence.forward_finite:
        if evidence.leaf_kind in ("batch", "external") or _names_a_mask(product):
            return _verdict(evidence, product, supported(evidence))
        return None
    origin, confidence, output = evidence.origin, singular(evidence), bad_output(evidence)
    if origin is None or confidence is None or output is None or not output.summary.n_nan or not _meets(origin):
        return None
    return _verdict(evidence, origin, confidence)


def _verdict(evidence: Evidence, product: OpFacts, confidence: str) -> Verdict:
    return Verdict(
        cause="zero-times-inf",
        confidence=confidence,  # type: ignore[arg-type]
        title="masking by multiplication: 0 × inf is NaN",
        why=(
            f"{why.place(product)} multiplies by exactly 0 wherever the other factor is not finite",
            *_from(evidence),
        ),
        advice="select with where(mask, value, 0) instead of multiplying by the mask",
    )


def _from(evidence: Evidence) -> tuple[str, ...]:
    if evidence.leaf is not None:
        first = f", first at {list(evidence.indices[0])}" if evidence.indices else ""
        return (f"{why.leaf_name(evidence)} came with {', '.join(evidence.chips) or 'non-finite values'}{first}",)
    if evidence.origin is not None and evidence.origin != evidence.multiplier_zero:
        return (f"{why.place(evidence.origin)} made {', '.join(evidence.chips) or 'the non-finite values'}",)
    return ()


def _names_a_mask(product: OpFacts) -> bool:
    text = product.source.text if product.source is not None else ""
    return bool(re.search(r"mask|valid|weight_pad|padding", text, re.IGNORECASE)) or any(
        "mask" in t.origin.lower() for t in product.inputs
    )


def _meets(origin: OpFacts) -> bool:
    name, operands = base(origin.op), floating(origin)
    if origin.phase == "backward" or not (name in PRODUCT or name in MATMUL) or len(operands) < 2:
        return False
    a, b = operands[-2:] if name in ("addmm", "baddbmm") else operands[:2]

    def infinite(t: object) -> bool:
        s = t.summary  # type: ignore[attr-defined]
        return bool(s.n_posinf + s.n_neginf)

    return (infinite(a) and has_zero(b)) or (infinite(b) and has_zero(a))
