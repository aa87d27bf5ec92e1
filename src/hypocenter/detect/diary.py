"""The loss-scale diary, read back: one entry per scaled step, from the rows that the recording half wrote.

Rows of phase `scaler` (written by hypocenter.session.observers.diary):

    site `loss_scale`, port `value`             the scale of the step; `module` is the scaler's class name
    site `loss_scale.<fact>`, port `value`      a fact of FACTS, where the scaler has it
    site `loss_scale.found_inf.<device>`        1 when a gradient on that device was not finite, else 0; `call` counts
                                                the optimizers of the step, `module` is the class name of this one
    site <parameter>, port `scaled_grad`        the gradient as the scaler looked at it, the scale still in it: counts
                                                of NaN and infinities, `absmax` the largest finite magnitude. Written
                                                for every bad parameter and the nearest others at a step that
                                                overflowed, and for a part of the parameters in turn at the others.
                                                Of one element, whatever its shape: that it was bad is all that is known

When one scaler serves several optimizers in a step, each writes these rows, the scale and the facts being the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hypocenter.nouns import Reading, Summary

SCALE = "loss_scale"
FOUND_INF = f"{SCALE}.found_inf."
SCALED_GRAD = "scaled_grad"
FACTS = (
    "growth_tracker", "growth_interval", "growth_factor", "backoff_factor", "init_scale", "min_scale", "hysteresis",
    "is_dynamic", "rebuilt",
)  # fmt: skip
"""`rebuilt` is 1 when the scale had been taken out of the gradients before they were looked at, and was multiplied back
into `absmax`: exact for a scale that is a power of two, unless the gradients were changed in between."""


def at_least_one(peak: float) -> Summary:
    """Return a summary of a gradient of which only its largest magnitude, inf or NaN, is known."""
    return Summary(n=1, n_nan=int(math.isnan(peak)), n_posinf=int(not math.isnan(peak)))


def share_nonfinite(n: int, n_nonfinite: int, shape: Sequence[int]) -> float | None:
    """Return the share of a gradient's elements that were not finite; None where that is not known."""
    return None if n == 1 < math.prod(shape) and n_nonfinite else n_nonfinite / max(1, n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a loss scaler knew at one step, and what it looked at."""

    step: int
    scale: float
    kind: str = ""  # class name of the scaler
    facts: dict[str, float] = field(default_factory=dict)  # of FACTS
    found_inf: tuple[str, ...] = ()  # devices with a gradient that was not finite
    n_optimizers: int = 1  # that stepped under this scaler
    n_skipped: int = 0  # of these, how many did not update
    gradients: tuple[Reading, ...] = ()  # rows of port `scaled_grad`

    @property
    def culprits(self) -> tuple[Reading, ...]:
        """The gradients that were not finite, worst share first."""
        bad = [r for r in self.gradients if r.summary.n_nonfinite]
        return tuple(sorted(bad, key=lambda r: r.summary.n_nonfinite / max(1, r.summary.n), reverse=True))

    @property
    def near(self) -> tuple[Reading, ...]:
        """The gradients that were finite, largest magnitude first."""
        good = [r for r in self.gradients if not r.summary.n_nonfinite]
        return tuple(sorted(good, key=lambda r: r.summary.absmax, reverse=True))


def entry_of(readings: Iterable[Reading]) -> Entry | None:
    """Read the entry of one step of one rank; return None when no loss scaler stepped."""
    scales: list[Reading] = []
    facts: dict[str, float] = {}
    found: list[Reading] = []
    gradients: list[Reading] = []
    for row in readings:
        if row.phase != "scaler" or row.replay:
            continue
        if row.port == SCALED_GRAD:  # asked first: a parameter may have any name
            gradients.append(row)
        elif row.site == SCALE:
            scales.append(row)
        elif row.site.startswith(FOUND_INF):
            found += [row] if row.summary.sum else []
        elif row.site.removeprefix(f"{SCALE}.") in FACTS:
            facts[row.site.removeprefix(f"{SCALE}.")] = _value(row)
    if not scales:
        return None
    return Entry(
        step=scales[0].step,
        scale=_value(scales[0]),
        kind=scales[0].module,
        facts=facts,
        found_inf=tuple(dict.fromkeys(row.site.removeprefix(FOUND_INF) for row in found)),
        n_optimizers=len(scales),
        n_skipped=len({row.call for row in found}),
        gradients=tuple(gradients),
    )


def _value(row: Reading) -> float:
    """Return the number that a Reading of one element holds."""
    values = row.summary
    if values.n_nan:
        return math.nan
    return math.inf * (values.n_posinf - values.n_neginf) if values.n_posinf or values.n_neginf else values.sum
