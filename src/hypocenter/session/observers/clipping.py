"""What gradients are multiplied by between backward and the update: the coefficient of clipping, whoever clips.

The norm of each gradient before and after: where all have the same ratio, that is the coefficient. Before torch's
`clip_grad_norm_` the session has them at hand, so it costs nothing and is known at each step that clips. Clipping by
hand is seen on the steps of config.replicas, for which the norms are taken once more when a backward is over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hypocenter.detect.replica_rows import CLIP
from hypocenter.schedule import parse
from hypocenter.session.check import Check, scalar_reading
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.gradients import local, norms, to_host

AT_LEAST = 2  # parameters: the ratio of a single one may be anything's (a reduction by hand)
SPREAD = 1e-4  # relative, of the ratios of single parameters in float32: rounding of one multiplication and two norms
SPREAD_LOW = 1e-2  # with gradients in a half-precision format, whose rounding is up to 2**-8 per element


class Clipping(Observer):
    """Writes clip_coef, the common ratio of gradient norms after and before clipping. Off in a job of one process."""

    needs = "ranks"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = parse(context.config.replicas)
        self._before_clip: dict[str, float] = {}
        self._after_backward: list[tuple[str, Tensor]] = []  # norms on their devices
        self._arrived: list[float] = []  # the same on the host

    def _is_on(self) -> bool:
        return self.context.config.replicas != "never" and self.context.rank()[1] > 1

    def after_backward(self) -> None:
        """Take the norms of gradients at steps of the schedule; they are read at the update."""
        if not self._is_on() or not self._is_due(self.context.clock.step):
            return
        named = [
            (name, values)
            for name, p in self.context.names.parameters()
            if p.grad is not None and (values := local(p.grad)) is not None
        ]
        with torch.no_grad():
            found = norms([v for _, v in named])
        self._after_backward = [(name, norm) for (name, _), norm in zip(named, found, strict=True)]
        self._arrived = []
        if len({norm.device for norm in found}) == 1 and found[0].device.type != "cpu":
            self._arrived = (host := list[float]())
            self.context.ride(torch.stack(found), host.extend)

    def seen_before_clip(self, parameters: Sequence[Tensor], check: Check) -> None:
        """Keep the norms that torch's own clipping sees."""
        if self._is_on():
            for name, norm in check.grad_norms.items():  # of several calls the first has seen a gradient unclipped
                self._before_clip.setdefault(name, norm)

    def before_update(self, update: Update) -> None:
        """Compare the norms at the update with those before clipping, and write the coefficient."""
        before, self._before_clip = self._before_clip, {}
        started, self._after_backward = self._after_backward, []
        if not self._is_on() or not isinstance(update.optimizer, torch.optim.Optimizer):
            return
        if started:
            host = self._arrived or to_host([norm for _, norm in started])
            before = {name: norm for (name, _), norm in zip(started, host, strict=True)}
        is_low = any(p.dtype.itemsize < 4 for p in update.parameters)
        coefficient = _common_ratio(before, update.check.grad_norms, SPREAD_LOW if is_low else SPREAD)
        if coefficient is None:
            return
        if update.scaled is not None and started and update.scaled.is_unscaled:
            coefficient *= update.scaled.state.scale  # was still in them after backward
        order = self.context.clock.next_order()
        self.rows.append(scalar_reading(CLIP, "optimizer", coefficient, update.step, order))


def _common_ratio(before: Mapping[str, float], after: Mapping[str, float], spread: float) -> float | None:
    """Return the ratio of norms that all parameters share; None when they do not, or nothing is known."""
    pairs = [(before[name], norm) for name, norm in after.items() if before.get(name)]
    ratios = sorted(b / a for a, b in pairs if math.isfinite(a) and math.isfinite(b) and b > 0)
    if len(ratios) < AT_LEAST or len(ratios) < len(pairs):
        return None
    middle = ratios[len(ratios) // 2]
    return middle if ratios[-1] - ratios[0] <= spread * middle else None
