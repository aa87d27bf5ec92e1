"""Gradients too small for float16 became zero.

What it means
    Below 2^-25 (3e-8) a float16 value becomes exactly 0, and below 2^-14 it loses bits. A loss scale lifts gradients
    out of there on their way back; without one, or with one that is too low, parts of the model learn nothing, and
    nothing looks wrong.

How it is decided
    The step is done again with the loss multiplied by a power of two. Elements that are nonzero then, and exactly zero
    in the step itself, were lost: proven. It is said when they are a tenth of all (without a scaler; or a tenth of the
    parameters lost everything), a quarter with one. The probe is made when a gradient's norm is suspiciously small,
    a few times per run at most, and not when the loss is below 1e-4 of the first one.

What to do
    Without a scaler: scale the loss (torch.amp.GradScaler), or use bfloat16. With one: let the scale rise, see what
    made it fall.

When it is wrong
    When the parts concerned have nothing left to learn.
"""

from __future__ import annotations

from hypocenter.diagnose.evidence import Evidence, Verdict
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.rulings import fact
from hypocenter.diagnose.verdicts import cause
from hypocenter.formats import FORMATS
from hypocenter.in_words import counted

SMALLEST_HALF = FORMATS["float16"].smallest_subnormal


@cause("grad-underflow", order=45)
def decide(evidence: Evidence) -> Verdict | None:
    """What a replay with a larger loss has brought back."""
    n_lost, n_elements, factor = (fact(evidence, name) for name in ("n_lost", "n_elements", "factor_log2"))
    if evidence.trigger != "grad-underflow" or not n_lost or not n_elements or factor is None:
        return None
    scale = evidence.loss_scale
    at = "without a loss scale" if scale is None else f"at loss scale {short(scale)}"
    largest = fact(evidence, "largest_lost")
    return Verdict(
        cause="grad-underflow",
        confidence="proven",
        title=f"{n_lost / n_elements:.0%} of the gradient's elements are lost: too small for float16 {at}",
        why=(
            f"{n_lost:,.0f} of {n_elements:,.0f} elements are exactly 0, and are not when the step is done again with "
            f"the loss multiplied by 2^{factor:.0f}",
            *_whole(evidence),
            *(
                (f"the largest of them is {short(largest)}{', the scale taken out' if scale else ''}",)
                if largest
                else ()
            ),
        ),
        limit=SMALLEST_HALF / (scale or 1.0),
        actual=0.0,
        advice="scale the loss (a loss scaler), or use bfloat16" if scale is None else "let the loss scale rise",
    )


def _whole(evidence: Evidence) -> tuple[str, ...]:
    n_dead = fact(evidence, "n_dead")
    names = ", ".join(evidence.bad_params[:4]) + (", …" if len(evidence.bad_params) > 4 else "")
    if n_dead:
        return (
            f"{counted(int(n_dead), 'parameter')} of {evidence.n_params:,} lost everything; most is lost in {names}",
        )
    return (f"most is lost in {names}",) if names else ()
