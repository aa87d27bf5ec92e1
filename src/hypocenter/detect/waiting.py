"""Who waits for whom: ranks inside a collective that other members of its group never entered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypocenter.record.whereabouts import LastCall, Whereabouts, WherePhase

_ORDER: tuple[WherePhase, ...] = ("starting", "outside", "forward", "loss", "backward", "check", "agree", "update")
BACKWARD = "backward"  # stands for the collectives that a wrapper makes in C++ while gradients are computed


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A collective that some ranks are in, and others of its group are not."""

    op: str  # all_reduce.sum; "backward" where what they wait in cannot be seen
    seq: int  # n-th of the group, from 0
    group: tuple[int, ...]
    name: str  # torch's name of the group
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    since_mono_ns: int  # when the last of them came


def waits(whereabouts: Mapping[int, Whereabouts]) -> list[Wait]:
    """Return every collective that somebody waits in for somebody, the one that most ranks wait in first."""
    found = [*_in_collectives(whereabouts), *_for_peers(whereabouts)]
    if not found:
        found = _in_backward(whereabouts)
    return sorted(found, key=lambda wait: (-len(wait.waiting), wait.seq))


def is_waiting(w: Whereabouts) -> bool:
    """Return whether a rank is inside a collective, or was thrown out of its last one."""
    return w.call is not None and w.call.state in ("inside", "failed")


def progress(w: Whereabouts) -> tuple[int, int, int]:
    """Return a key that orders places within training."""
    return w.step, w.microbatch, _ORDER.index(w.phase) if w.phase in _ORDER else 1


def _in_collectives(whereabouts: Mapping[int, Whereabouts]) -> Iterable[Wait]:
    there: dict[int, list[tuple[int, LastCall]]] = defaultdict(list)
    for rank, w in whereabouts.items():
        if is_waiting(w) and w.call is not None and w.call.op not in ("send", "recv"):
            there[_key(w.call, w)].append((rank, w.call))
    for key, calls in there.items():
        last = max(calls, key=lambda pair: pair[1].seq)[1]
        group = last.ranks or tuple(r for r, w in sorted(whereabouts.items()) if key in w.counts)
        waiting = {rank: call.entered_ns for rank, call in calls if call.seq == last.seq}
        missing = (r for r in group if r not in whereabouts or whereabouts[r].counts.get(key, 0) <= last.seq)
        missing = tuple(r for r in missing if r not in waiting)
        if missing:
            yield Wait(
                op=last.op, seq=last.seq, group=group, name=last.group, waiting=tuple(sorted(waiting)), missing=missing,
                since_mono_ns=max(waiting.values()),
            )  # fmt: skip


def _key(call: LastCall, w: Whereabouts) -> int:
    if call.members:
        return call.key
    return next((key for key, n in w.counts.items() if n == call.seq + 1), 0)


def _for_peers(whereabouts: Mapping[int, Whereabouts]) -> Iterable[Wait]:
    for rank, w in whereabouts.items():
        call = w.call
        if call is None or not is_waiting(w) or call.op not in ("send", "recv") or len(call.ranks) != 1:
            continue
        peer = whereabouts.get(call.ranks[0])
        if peer is None or not is_waiting(peer):
            yield Wait(
                op=call.op, seq=call.seq, group=(*sorted((rank, *call.ranks)),), name=call.group, waiting=(rank,),
                missing=call.ranks, since_mono_ns=call.entered_ns,
            )  # fmt: skip


def _in_backward(whereabouts: Mapping[int, Whereabouts]) -> list[Wait]:
    """Return waits of ranks in the backward of one step for those short of it: collectives in C++ are not seen."""
    behind_none = max((progress(w)[:2] for w in whereabouts.values()), default=(0, 0))
    ahead = {r: w for r, w in whereabouts.items() if w.phase == "backward" and progress(w)[:2] == behind_none}
    missing = {r for r, w in whereabouts.items() if r not in ahead and (w.step > 0 or not behind_none[0])}
    if not ahead or not missing:
        return []
    if max(progress(whereabouts[r]) for r in missing) >= min(progress(w) for w in ahead.values()):
        return []
    return [
        Wait(
            op=BACKWARD, seq=behind_none[0], group=tuple(sorted({*ahead, *missing})), name="",
            waiting=tuple(sorted(ahead)), missing=tuple(sorted(missing)),
            since_mono_ns=max(w.changed_mono_ns for w in ahead.values()),
        )
    ]  # fmt: skip
