"""What the sentinel of any framework saw at one update, and a number of the run as a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypocenter.nouns import Reading, Summary


@dataclass(slots=True, kw_only=True)
class Check:
    """What the sentinel saw at one update."""

    losses: list[float] = field(default_factory=list)
    grad_norms: dict[str, float] = field(default_factory=dict)  # local L2 norms by parameter, loss scale taken out
    bad_params: list[str] = field(default_factory=list)  # gradient not finite
    newly_dead: list[str] = field(default_factory=list)  # gradient exactly 0, and was not at the step before

    @property
    def loss_finite(self) -> bool:
        """Whether every micro-batch's loss was finite."""
        return all(math.isfinite(loss) for loss in self.losses)

    @property
    def total_norm(self) -> float:
        """L2 norm over all parameters of this optimizer."""
        return math.sqrt(sum([norm * norm for norm in self.grad_norms.values()]))


def scalar_reading(
    site: str, phase: str, value: float, step: int, order: int, microbatch: int = 0, module: str = ""
) -> Reading:
    """A number of the run (loss, grad_norm, lr, loss_scale) as a Reading of one element.

    Args:
        module: class name of what the number is of (the loss scaler).
    """
    if math.isfinite(value):
        summary = Summary(n=1, n_hist=1, n_zero=int(value == 0), min=value, max=value, absmax=abs(value), sum=value,
                          sumsq=value * value, absmin=abs(value) or None)  # fmt: skip
    else:
        summary = Summary(n=1, n_nan=int(math.isnan(value)), n_posinf=int(value > 0), n_neginf=int(value < 0))
    return Reading(
        step=step, microbatch=microbatch, phase=phase, site=site, port="value", order=order, dtype="float32",  # type: ignore[arg-type]
        summary=summary, module=module,
    )  # fmt: skip
