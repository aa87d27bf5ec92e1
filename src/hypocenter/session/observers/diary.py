"""The loss-scale diary: what the scaler knew at each step, and which gradients were too large for the scale.

Gradients are looked at while the scale is still in them, or as soon after it was taken out as an overflow is known: a
clip between `unscale_` and `step` spreads one NaN to all of them. A healthy step costs one kernel over an eighth of the
parameters and one transfer.

On a device the host must wait to know of an overflow before the clip. It does where one is likely: in the first step,
after an overflow, and when the scale has just grown. In other steps largest magnitudes are taken on the device, and
read with the check: they tell which gradients overflowed, but not how many elements did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from hypocenter.detect.diary import FACTS, FOUND_INF, SCALE, SCALED_GRAD, at_least_one
from hypocenter.nouns import Reading, Summary, replace
from hypocenter.session.check import Check, scalar_reading
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.tap.extremes import counted, largest
from hypocenter.tap.grad_scaler import devices_of, torch_scaler_state
from hypocenter.tap.gradients import local, to_host
from hypocenter.tap.scaled import ScaledUpdate, ScalerState, Unscaling

ROTATION = 8  # healthy steps in which each parameter is looked at once
NEAREST = 64  # gradients that did not overflow, of a step in which others did

Gradients = Sequence[tuple[torch.Tensor, torch.Tensor]]
Ride = Callable[[torch.Tensor, Callable[[Sequence[float]], None]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What was seen of a parameter's gradient."""

    parameter: torch.Tensor
    gradient: torch.Tensor
    summary: Summary
    is_rebuilt: bool = False  # the scale was multiplied back


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peak:
    """The largest magnitude of a gradient as a clip saw it; inf or NaN of one that overflowed."""

    value: float
    is_unscaled: bool  # the scale was taken out of it before


class Diary(Observer):
    """Writes the rows that hypocenter.detect.diary describes."""

    needs = "scaler"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._unscaled: dict[int, Unscaling] = {}  # by optimizer, until its step
        self._started: dict[int, _Turn] = {}  # by optimizer: taken while the scale was in
        self._seen: dict[int, _Look | None] = {}  # by parameter looked at in an overflow; None: not worth a row
        self._clipping: dict[int, set[int]] = {}  # by id of the list that is clipped: its parameters unscaled by then
        self._peaks: dict[int, _Peak] = {}  # by parameter, of clips whose overflow was not waited for
        self.is_urgent = True  # this step is likely to overflow
        self._step, self._n_in_step = -1, 0

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Forget what was seen of gradients that led to no step: they change now, and must not be kept in memory."""
        self._seen.clear()
        self._unscaled.clear()
        self._started.clear()
        self._clipping.clear()
        self._peaks.clear()

    def before_unscale(self, unscaling: Unscaling) -> None:
        """Begin to look at gradients while the scale is in them for the last time, without waiting for the device."""
        self._unscaled[id(unscaling.optimizer)] = unscaling
        self._started[id(unscaling.optimizer)] = _Turn(unscaling.gradients, self.context.clock.step, self.context.ride)

    def after_unscale(self, unscaling: Unscaling) -> None:
        """Look at an overflow at once, where it is known without waiting."""
        if unscaling.has_overflowed:  # what a clip before this has seen was not clipped then
            unseen = [(p, g) for p, g in unscaling.gradients if id(p) not in self._seen]
            self._see(unseen, torch_scaler_state(unscaling.scaler).scale)

    def before_clip(self, parameters: Sequence[torch.Tensor], max_norm: float) -> None:
        """Note which gradients are unscaled already: the program may unscale others before their norms arrive."""
        self._clipping[id(parameters)] = {id(p) for each in self._unscaled.values() for p, _ in each.gradients}

    def seen_before_clip(self, parameters: Sequence[torch.Tensor], check: Check) -> None:
        """Look at bad gradients before a clip makes one many."""
        unscaled = self._clipping.pop(id(parameters), None)
        if not check.bad_params or unscaled is None:
            return
        if check.peaks:
            for parameter in parameters:  # of several clips the first has seen a gradient unclipped
                if (value := check.peaks.get(self.context.label(parameter))) is not None:
                    self._peaks.setdefault(id(parameter), _Peak(value=value, is_unscaled=id(parameter) in unscaled))
            return
        gradients = [(p, p.grad) for p in parameters if p.grad is not None and id(p) not in self._seen]
        wanted = {id(p) for p, _ in gradients}
        for unscaling in self._unscaled.values():
            of_this = [(p, g) for p, g in gradients if id(p) in wanted & {id(q) for q, _ in unscaling.gradients}]
            self._see(of_this, torch_scaler_state(unscaling.scaler).scale)
            wanted -= {id(p) for p, _ in of_this}
        self._see([(p, g) for p, g in gradients if id(p) in wanted], 1.0)

    def before_check(self, scaled: ScaledUpdate) -> None:
        """Begin to look at gradients from which the scaler will take the scale itself, in its step."""
        if not scaled.is_unscaled:
            self._started[id(scaled.optimizer)] = _Turn(scaled.gradients, self.context.clock.step, self.context.ride)

    def before_update(self, update: Update) -> None:
        """Write the state of the scaler that is about to step, and the gradients that are too large for it."""
        scaled = update.scaled
        if scaled is None:
            self._forget(update)
            return
        rebuild = scaled.state.scale if scaled.is_unscaled else 1.0
        mine = {id(p) for p, _ in update.gradients}
        if update.check.bad_params or any(scaled.found_inf.values()):
            self._see_peaks(update.gradients, scaled.state.scale)
            self._see([(p, g) for p, g in update.gradients if id(p) not in self._seen], rebuild)
            looks = [look for key, look in self._seen.items() if key in mine and look is not None]
        else:
            turn = self._started.get(id(update.optimizer))
            looks = turn.looks() if turn is not None else _Turn(update.gradients, update.step, rebuild=rebuild).looks()
        self.rows += self._facts(scaled.state, update.step, any(look.is_rebuilt for look in looks))
        self.rows += [self._row(look, update) for look in looks]

    def after_update(self, update: Update) -> None:
        """Write what the scaler found, device by device, and with that whether it has skipped."""
        self._forget(update)
        scaled = update.scaled
        if scaled is None:
            return
        self._n_in_step = self._n_in_step + 1 if update.step == self._step else 0
        may_overflow = update.skipped or _has_grown(scaled.state)
        self.is_urgent = may_overflow or (self.is_urgent and update.step == self._step)
        self._step = update.step
        found = scaled.found_inf or self._found_by_us(update)
        kind = type(update.optimizer).__name__
        for device, is_bad in sorted(found.items()):
            row = self._fact(f"{FOUND_INF}{device}", float(is_bad), update.step)
            self.rows.append(replace(row, module=kind, call=self._n_in_step))

    def _found_by_us(self, update: Update) -> dict[str, bool]:
        """Return on which devices gradients are bad, for a scaler that does not tell."""
        bad = set(update.check.bad_params)
        is_bad = devices_of([(p, g) for p, g in update.gradients if self.context.label(p) in bad])
        return {device: device in is_bad for device in devices_of(update.gradients)}

    def _see(self, gradients: Gradients, rebuild: float) -> None:
        self._seen |= {id(parameter): None for parameter, _ in gradients}
        for look in _overflow(gradients, rebuild):
            self._seen[id(look.parameter)] = look

    def _see_peaks(self, gradients: Gradients, scale: float) -> None:
        """Keep what a clip saw of these gradients, which are NaN or 0 by now."""
        mine = [(p, g, peak) for p, g in gradients if (peak := self._peaks.get(id(p))) and id(p) not in self._seen]
        self._seen |= {id(p): None for p, _, _ in mine}
        tops = [peak.value * (_factor(scale) if peak.is_unscaled else 1.0) for _, _, peak in mine]
        for i in _bad_and_nearest(tops):
            parameter, gradient, peak = mine[i]
            is_finite = math.isfinite(tops[i])
            summary = _finite(gradient.numel(), tops[i]) if is_finite else at_least_one(peak.value)
            self._seen[id(parameter)] = _Look(
                parameter=parameter, gradient=gradient, summary=summary, is_rebuilt=peak.is_unscaled and scale != 1.0
            )

    def _forget(self, update: Update) -> None:
        self._unscaled.pop(id(update.optimizer), None)
        self._started.pop(id(update.optimizer), None)
        if self._seen or self._peaks:
            for parameter in update.parameters:
                self._seen.pop(id(parameter), None)
                self._peaks.pop(id(parameter), None)

    def _facts(self, state: ScalerState, step: int, is_rebuilt: bool) -> Iterable[Reading]:
        for name in FACTS:
            value = (is_rebuilt or None) if name == "rebuilt" else getattr(state, name)
            if value is not None:
                yield self._fact(f"{SCALE}.{name}", float(value), step)

    def _fact(self, site: str, value: float, step: int) -> Reading:
        return scalar_reading(site, "scaler", value, step, self.context.clock.next_order())

    def _row(self, look: _Look, update: Update) -> Reading:
        return Reading(
            step=update.step,
            microbatch=0,
            phase="scaler",
            site=self.context.label(look.parameter),
            port=SCALED_GRAD,
            order=self.context.clock.next_order(),
            dtype=str(look.gradient.dtype).removeprefix("torch."),
            shape=tuple(look.gradient.shape),
            summary=look.summary,
        )


class _Turn:
    """The largest magnitudes of a part of the gradients: computed on their device, read later."""

    def __init__(self, gradients: Gradients, step: int, ride: Ride = lambda *_: None, *, rebuild: float = 1.0) -> None:
        n_turns = max(1, min(ROTATION, len(gradients)))
        mine = [pair for i, pair in enumerate(gradients) if i % n_turns == step % n_turns]
        self._held = _dense(mine)
        self._tops = largest([values for _, _, values in self._held])
        self._rebuild = rebuild
        self._host: Sequence[float] | None = None
        if len({top.device for top in self._tops}) == 1 and self._tops[0].device.type != "cpu":
            ride(torch.stack([top.reshape(()).float() for top in self._tops]), self._arrive)

    def _arrive(self, numbers: Sequence[float]) -> None:
        self._host = numbers

    def looks(self) -> list[_Look]:
        """Return the magnitudes as looks; gradients that are not finite are left out, as nobody asked for counts."""
        factor = _factor(self._rebuild)
        host = to_host(self._tops) if self._host is None else self._host
        return [
            _Look(
                parameter=parameter,
                gradient=gradient,
                summary=_finite(values.numel(), top * factor),
                is_rebuilt=self._rebuild != 1.0,
            )
            for (parameter, gradient, values), top in zip(self._held, host, strict=True)
            if math.isfinite(top * factor)
        ]


def _overflow(gradients: Gradients, rebuild: float) -> list[_Look]:
    """Return every gradient that is not finite, with exact counts, and the largest of the others."""
    factor = _factor(rebuild)
    held = _dense(gradients)
    tops = to_host(largest([values for _, _, values in held]))
    chosen = _bad_and_nearest(tops)
    bad = [i for i in chosen if not math.isfinite(tops[i])]
    summaries = {i: _finite(held[i][2].numel(), tops[i]) for i in chosen}
    summaries |= zip(bad, counted([held[i][2] for i in bad]), strict=True)
    return [
        _Look(
            parameter=held[i][0],
            gradient=held[i][1],
            summary=replace(summary, absmax=min(summary.absmax * factor, _LARGEST)),
            is_rebuilt=rebuild != 1.0,
        )
        for i, summary in summaries.items()
    ]


def _bad_and_nearest(tops: Sequence[float]) -> list[int]:
    """Return the places of magnitudes that are not finite, then those of the largest of the others."""
    bad = [i for i, top in enumerate(tops) if not math.isfinite(top)]
    near = sorted((i for i, top in enumerate(tops) if math.isfinite(top)), key=lambda i: -tops[i])
    return [*bad, *near[:NEAREST]]


def _has_grown(state: ScalerState) -> bool:
    """Return whether one more step without an overflow makes the scale grow."""
    if state.growth_tracker is None or state.growth_interval is None:
        return False
    return state.growth_tracker + 1 >= state.growth_interval


_LARGEST = float(torch.finfo(torch.float64).max)


def _dense(gradients: Gradients) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Return (parameter, gradient, the values of it on this rank), for gradients that have some."""
    return [(p, g, values) for p, g in gradients if (values := local(g)) is not None]


def _factor(rebuild: float) -> float:
    """Return the scale to multiply by; 1 where nothing can be multiplied by it."""
    return rebuild if math.isfinite(rebuild) and rebuild > 0 else 1.0


def _finite(n: int, absmax: float) -> Summary:
    return Summary(n=n, absmax=absmax) if absmax else Summary(n=n, n_hist=n, n_zero=n)
