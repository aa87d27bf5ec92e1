"""The largest attention logit of each head, and when it leaves the resolution of bfloat16.

What it means
    Queries and keys that grow make logits that grow with the product of both. Then attention is all on one place,
    and gradients of the softmax vanish or jump; large models diverged of it (Dehghani et al. 2023, arXiv
    2302.05442; Wortsman et al. 2023, arXiv 2309.14322). bfloat16 has 8 bits: from 128 on, neighbouring numbers are
    1 apart, which is a factor of e in the softmax.

How it is decided
    `run --health` does a micro-batch of its steps again and takes the largest logit of each head that is not
    masked; of fused attention the logits are computed again, in float32. Out of range: 128 or more, or a steady
    rise that reaches it within as many steps as the rise was watched (the forecast needs 24 looks; it is that of
    HC205).

What to do
    Normalise queries and keys (qk-norm), cap or clip logits, lower the learning rate or raise weight decay of these
    projections; compute the scores in float32.

When it is wrong
    Logits that have no bound by design, or are capped after where they are read. Where scores are computed in
    float32 the resolution is no matter, the growth still is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from hypocenter.detect.forecast import Forecast, forecast
from hypocenter.detect.health_rows import LOGITS
from hypocenter.diagnose.health import Value, measure
from hypocenter.diagnose.numbers import short
from hypocenter.diagnose.recorded_health import Recorded, Series
from hypocenter.formats import FORMATS
from hypocenter.in_words import counted

LIMIT = 1.0 / FORMATS["bfloat16"].eps  # 128: neighbouring numbers are 1 apart


@measure("attention-logits", column="logits", needs="health", order=30)
def take(recorded: Recorded) -> Iterator[Value]:
    """Of each attention the head with the largest logit."""
    for series in recorded.looks(LOGITS):
        heads = [value if math.isfinite(value) else 0.0 for value in series.numbers]
        head = max(range(len(heads)), key=lambda i: heads[i])
        now = heads[head]
        n_over = sum(value >= LIMIT for value in heads)
        of = f"of head {head} " if len(heads) > 1 else ""
        says = f"the largest logit {of}is {short(now)}"
        says += f"; {counted(n_over, 'head')} of {len(heads)} at {LIMIT:.0f} or more" if n_over else ""
        due = _due(series, range(len(heads)))
        is_out = n_over > 0
        if due is not None:
            which, found = due
            is_out = is_out or found.likely_steps <= found.span_steps
            says += (
                f"; head {which} leaves the resolution of bfloat16 ({LIMIT:.0f}) at about step "
                f"{found.step + found.likely_steps:.0f} ({found.step + found.near_steps:.0f} to "
                f"{found.step + found.far_steps:.0f}) if it goes on"
            )
        yield Value(
            site=series.place.site,
            value=now,
            says=says,
            is_out=is_out,
            how_far=now,
            step=series.last.step,
            rank=series.place.rank,
        )


def _due(series: Series, heads: Sequence[int]) -> tuple[int, Forecast] | None:
    """Return the head that reaches the limit first, and when, if any rises steadily; else None."""
    found: list[tuple[int, Forecast]] = []
    for head in heads:
        points = [(step, math.log2(value)) for step, value in series.points(head) if 0.0 < value < math.inf]
        one = forecast(points, math.log2(LIMIT))
        if one is not None:
            found.append((head, one))
    return min(found, key=lambda pair: pair[1].likely_steps, default=None)
