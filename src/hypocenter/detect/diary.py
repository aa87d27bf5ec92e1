"""The loss-scale diary, read back: one entry per scaled step, from the rows that the recording half wrote.

Rows of phase `scaler` (written by hypocenter.session.observers.diary):

    site `loss_scale`, port `value`             the scale of the step; `module` is the scaler's class name
    site `loss_scale.<fact>`, port `value`      a fact of FACTS, where the scaler has it
    site `loss_scale.found_inf.<device>`        1 when a gradient on that device was not finite, else 0
    site <parameter>, port `scaled_grad`        the gradient as the scaler looked at it, the scale still in it: counts
                                                of NaN and infinities, `absmax` the largest finite magnitude. Written
                                                for every bad parameter and the nearest others at a step that
                                                overflowed, and for a part of the parameters in turn at the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypocenter.nouns import Reading

SCALE = "loss_scale"
FOUND_INF = f"{SCALE}.found_inf."
SCALED_GRAD = "scaled_grad"
FACTS = (
    "growth_tracker", "growth_interval", "growth_factor", "backoff_factor", "init_scale", "min_scale", "hysteresis",
    "is_dynamic",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a loss scaler knew at one step, and what it looked at."""

    step: int
    scale: float
    kind: str = ""  # class name of the scaler
    facts: dict[str, float] = field(default_factory=dict)  # of FACTS
    found_inf: tuple[str, ...] = ()  # devices with a gradient that was not finite
    gradients: tuple[Reading, ...] = ()  # rows of port `scaled_grad`

    @property
    def culprits(self) -> tuple[Reading, ...]:
        """The gradients that were not finite, worst share first."""
        bad = [r for r in self.gradients if r.summary.n_nonfinite]
        return tuple(sorted(bad, key=lambda r: r.summary.n_nonfinite / max(1, r.summary.n), reverse=True))


def entry_of(readings: Iterable[Reading]) -> Entry | None:
    """The entry of one step of one rank; None when no loss scaler stepped."""
    scale: Reading | None = None
    facts: dict[str, float] = {}
    devices: list[str] = []
    gradients: list[Reading] = []
    for row in readings:
        if row.phase != "scaler" or row.replay:
            continue
        if row.site == SCALE:
            scale = row
        elif row.port == SCALED_GRAD:
            gradients.append(row)
        elif row.site.startswith(FOUND_INF):
            if row.summary.sum:
                devices.append(row.site.removeprefix(FOUND_INF))
        elif row.site.removeprefix(f"{SCALE}.") in FACTS:
            facts[row.site.removeprefix(f"{SCALE}.")] = row.summary.sum
    if scale is None:
        return None
    return Entry(
        step=scale.step,
        scale=scale.summary.sum,
        kind=scale.module,
        facts=facts,
        found_inf=tuple(devices),
        gradients=tuple(gradients),
    )
