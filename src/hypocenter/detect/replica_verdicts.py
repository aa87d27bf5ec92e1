"""Why replicas went apart: one verdict per axis of a job, from all of its occasions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hypocenter.axes import HOLD_COPIES
from hypocenter.detect import stream_track
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import axis_words
from hypocenter.detect.replica_track import Difference, Occasion, ReplicaTrack, Spread, common_factors, is_last, track

Reason = Literal["start", "unreduced", "clip", "flip", "split", "rounding", "streams", "rates", "data"]
"""start      they differ from the first recorded step on
unreduced  the optimizer sees gradients that nobody has added up
clip       the same gradients, multiplied by another factor on each rank
flip       one gradient of one parameter differs in one element, or only one parameter split
split      the parameters went apart although their gradients agree
rounding   gradients differ by no more than their rounding
streams    random streams went apart first (HC304 tells)
rates      another learning rate, a skipped update (HC306 tells)
data       tensor-parallel ranks were given other data (HC305 tells)
"""

GRADIENTS_AGREE = "the gradients of this step agree: something else has written to the parameters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What happened along one axis, and when."""

    axis: str
    reason: Reason
    first: Occasion  # at which it shows
    since: int | None  # last step whose recorded replicas were equal; None: there is no earlier one
    differences: tuple[Difference, ...]
    factors: dict[int, float] | None = None
    clip: Spread | None = None
    is_averaged: bool = False  # somebody writes to the parameters between updates: replicas may differ meanwhile
    is_assumed: bool = False  # nothing but equal values at the start says that these are tensor-parallel replicas
    have_gradients_agreed: bool = True  # at that step; False also where none was recorded at it
    later: int | None = None  # the first step at which what shared its gradient until then is apart too
    is_by_content: bool = False  # they began as the same random numbers, and other matrices did not
    is_learned: bool = False  # no wrapper and no mesh tells what is a replica: it began equal, moved, and was equal
    writers: tuple[int, ...] = ()  # ranks on which parameters were changed between updates
    n_params_differ: int = 0  # at the end
    n_params: int = 0
    has_wrapper: bool = False  # there is a DDP wrapper
    is_outside_wrapper: bool = False

    @property
    def along(self) -> str:
        """The axis as `data-parallel `, to be put before the ranks or the replicas; "" where nobody knows it."""
        return "" if self.is_learned else f"{axis_words(self.axis)} "

    @property
    def aftermath(self) -> tuple[str, ...]:
        """A sentence that says how many parameters differ in the end; nothing if that is not known."""
        if not self.n_params_differ:
            return ("at the end all parameters are equal",) if self.n_params else ()
        return (f"at the end {self.n_params_differ} of {self.n_params} replicated parameters differ",)


def verdicts(panel: Panel) -> list[Verdict]:
    """Return what happened along each axis, at the last panel of a job; before that nothing."""
    known = track(panel)
    streams = stream_track.track(panel)
    if not is_last(panel):
        return []
    notes = panel.history.notes["replicas"]
    if "verdicts" not in notes:
        notes["verdicts"] = [v for axis in HOLD_COPIES if (v := _judge(known, streams, axis)) is not None]
    found: list[Verdict] = notes["verdicts"]
    return found


def _judge(known: ReplicaTrack, streams: stream_track.StreamTrack, axis: str) -> Verdict | None:
    params = known.of(axis, "param")
    grads = known.of(axis, "grad")
    bad_param = next((o for o in params if o.n_differ), None)
    bad_grad = next((o for o in grads if o.real), None)
    first = min((o for o in (bad_param, bad_grad) if o is not None), key=lambda o: o.when, default=None)
    if first is None:
        return None
    if axis in known.by_content and any(
        of == axis and apart.steps[0] <= first.when[0] for (of, _), apart in streams.losses_apart.items()
    ):
        return None  # HC310 tells: of another loss each copy has another gradient
    since = max((o.step for o in params if o.when < first.when and not o.n_differ), default=None)
    at_same = next((o for o in grads if o.step == first.step and o.real), None)
    reason, later = _reason(known, streams, axis, first, since, at_same, grads), None
    if reason == "split" and (origin := _origin(known)) is not None:
        reason, later, first, at_same, since = origin[0], first.step, origin[1], origin[1], None
    shown = at_same if at_same is not None and reason in ("unreduced", "clip") else first
    last = params[-1] if params else None
    group = shown.differences[0].ranks if shown.differences else ()
    is_typed = all(d.site in known.typed.get(axis, ()) for d in shown.differences)
    return Verdict(
        axis=axis,
        reason=reason,
        first=shown,
        since=since,
        differences=shown.real or shown.differences,
        factors=common_factors(shown.differences) if shown.what == "grad" else None,
        clip=_clip(known, axis, since, first.step),
        is_averaged=axis == "dp" and known.facts.is_averaged(group) and not _are_shared(grads),
        have_gradients_agreed=any(o.step == first.step and not o.real for o in grads),
        is_learned=known.began is not None,
        is_assumed=axis == "tp" and axis not in known.by_content and is_typed,
        is_by_content=axis in known.by_content and is_typed,
        later=later,
        writers=tuple(sorted(known.facts.n_rewritten)),
        n_params_differ=last.n_differ if last is not None else 0,
        n_params=last.n if last is not None else 0,
        has_wrapper=known.facts.n_unwrapped is not None,
        is_outside_wrapper=axis == "dp" and bool(known.facts.n_unwrapped),
    )


def _origin(known: ReplicaTrack) -> tuple[Reason, Occasion] | None:
    """Return what was not the same at the first step of copies that are not reduced and went apart; None if unknown.

    With the same data, and weights that began equal, only random numbers can make losses differ. Where the losses are
    the same, so are the gradients of copies: those that are not, though they began equal, were not added up.
    """
    start = known.start
    if start is None or start.gradients is None or not start.has_same_data:
        return None
    parted = tuple(d for d in start.gradients.real if d.site in known.left)
    if not parted or (start.draws_alike and not start.is_alike):
        return None
    reason = "unreduced" if start.is_alike else "streams"
    return reason, replace(start.gradients, differences=parted, n_differ=len(parted))


def _are_shared(grads: Sequence[Occasion]) -> bool:
    """Return whether all ranks use the same gradients all along: then nothing is left to be averaged."""
    return any(o.n for o in grads) and not any(o.real for o in grads)


def _reason(
    known: ReplicaTrack, streams: stream_track.StreamTrack, axis: str, first: Occasion, since: int | None,
    at_same: Occasion | None, grads: Sequence[Occasion],
) -> Reason:  # fmt: skip
    if first.what == "param" and since is None and not first.is_after:
        return "start"
    if _explained_by_streams(streams, axis, first.step):
        return "streams"
    if axis == "tp" and any(o.step <= first.step for o in streams.other):
        return "data"
    if first.what == "grad":
        return _reason_of_gradients(first, grads)
    is_reduced = axis == "dp" and known.began is None  # what is learned may be a part of a layer that all compute
    if at_same is not None and is_reduced and not first.is_after:  # reduced gradients agree whatever parameters do
        return _reason_of_gradients(at_same, grads)
    if _clip(known, axis, since, first.step) is not None:
        return "clip"
    of_axis = stream_track.ALL if known.are_learned else axis
    uneven = [u for u in streams.uneven.values() if u.axis == of_axis and u.step <= first.step]
    if any(since is None or u.step >= since for u in uneven):
        return "rates"
    if any(o.step <= first.step and o.n_differ and not o.real for o in grads):
        return "rounding"
    return "flip" if first.n_differ == 1 < first.n else "split"


def _reason_of_gradients(first: Occasion, grads: Sequence[Occasion]) -> Reason:
    real = first.real
    if common_factors(first.differences) is not None and 2 * first.n_differ >= first.n:
        return "clip"
    later = [o for o in grads if o.step > first.step]
    is_over = bool(later) and not any(o.real for o in later)
    if first.n_differ == 1 < first.n and len(real) == 1 and (real[0].kind == "element" or is_over):
        return "flip"
    return "unreduced"


def _explained_by_streams(streams: stream_track.StreamTrack, axis: str, step: int) -> bool:
    return any(d.axis == axis and d.step <= step for d in streams.desyncs.values() if streams.is_used(d.stream))


def _clip(known: ReplicaTrack, axis: str, since: int | None, step: int) -> Spread | None:
    return next((s for s in known.clips.get(axis, ()) if (since is None or s.step >= since) and s.step <= step), None)
