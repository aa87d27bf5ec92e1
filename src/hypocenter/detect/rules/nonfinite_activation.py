"""An activation is not finite.

What it means
    The output of a module or operation held NaN or +inf. By itself this may be healthy: masks are made of
    infinities, and values that nobody uses may be anything. It matters when the loss or a gradient is not
    finite in the same step.

How it is decided
    An output is not finite while no input of the same call is. Infinities that are constants of the program are
    left out, so are sites that were not finite in earlier steps that were healthy. The first in execution order
    is reported: as an error when the loss or a gradient of the step is not finite, else as a note; there -inf
    alone, the usual mask, says nothing.

What to do
    If there is an error, it is the place to look at first. A replay finds the operation inside the module.

When it is wrong
    In the first recorded step nothing is known of earlier ones, and a mask may be named.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading


@rule("HC104", "nonfinite", severity="error", reads=("nonfinite",))
def check(window: Window) -> Iterator[Finding]:
    """Fire on the first output that is new among the non-finite ones and whose inputs are finite."""
    is_healthy = window.loss_finite and window.grads_finite
    rows = sorted((r for r in window.of("forward", "loss") if _counts(r, window)), key=lambda r: r.order)
    tainted = {_call(r) for r in rows if r.port.startswith("in[")}
    made = [r for r in rows if r.port.startswith("out") and _call(r) not in tainted]
    if is_healthy:
        made = [r for r in made if r.summary.n_nan or r.summary.n_posinf]
    if not made:
        return
    first = made[0]
    s = first.summary
    chips = [f"{k} ×{n:,}" for k, n in (("NaN", s.n_nan), ("+inf", s.n_posinf), ("-inf", s.n_neginf)) if n]
    others = len({r.site for r in made}) - 1
    yield Finding(
        code="HC104",
        kind="nonfinite",
        severity="note" if is_healthy else "error",
        title=f"{first.op or first.module or 'the output'} made {' and '.join(c.split(' ')[0] for c in chips)}",
        step=window.step,
        microbatch=first.microbatch,
        rank=window.rank,
        phase=first.phase,
        site=first.site,
        port=first.port,
        op=first.op or None,
        source=first.source,
        chips=tuple(chips),
        names=first.names,
        why=(f"{others} other site{'s' if others > 1 else ''} made non-finite values too",) if others else (),
    )


def _counts(reading: Reading, window: Window) -> bool:
    if not reading.summary.n_nonfinite or reading.literal_inf or reading.port in ("value", "probe"):
        return False
    return (reading.site, reading.port) not in window.history.healthy_nonfinite


def _call(reading: Reading) -> tuple[str, int, int, str]:
    return reading.site, reading.microbatch, reading.call, reading.op
