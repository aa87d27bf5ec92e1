"""Ranks that compute one model together come to other losses of the same batch.

What it means
    The ranks of a tensor-parallel group hold parts of one model, and each computes the whole loss. If their losses
    differ, something that has to be the same on all of them is not: a copy of a parameter that was made under a seed of
    each rank's own, dropout between the layers, a sum over the group that is missing.

How it is decided
    Losses of the step records are compared over the ranks of each tensor-parallel group that was given the same
    inputs and labels. They are equal to the bit as a rule; it fires where they are further apart than 1e-4
    of their size at three steps or more. What HC301 and HC304 explain is told there. It is a note where a parameter
    goes on to be equal on all ranks while such steps update it, and no mark tells a copy from a part: its gradients are
    added up, and each rank's loss may be its own part of the whole (classes, say, that it alone has weights of).

What to do
    Look at the parameters that are listed: those that are no parts of a layer have to begin equal. Make them under a
    seed that all ranks share, or broadcast them from one of them.

When it is wrong
    Where each rank's loss is only its part of the whole, of labels that were cut without the model or the loss seeing
    whole numbers, and no parameter that all ranks hold shows that the parts are added up.
"""

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hypocenter.detect import stream_track
from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.detect.rank_words import values_words
from hypocenter.detect.replica_columns import codes, compare, expected_equal
from hypocenter.detect.replica_rows import BEFORE, PARAM
from hypocenter.detect.replica_track import is_last
from hypocenter.detect.replica_verdicts import verdicts
from hypocenter.nouns import Finding, Remedy

CODE = "HC310"
AXIS = "tp"
TIMES = 3  # steps
SHOWN = 4  # parameters


@group_rule(CODE, "desync", severity="warning", reads=("digest", "scalar", "local"), asked="unlike", beside="HC301")
def check(panel: Panel) -> Iterator[Finding]:
    """At the last step, report the group of ranks whose losses went apart first."""
    known = stream_track.track(panel)
    notes = panel.history.notes[CODE]
    if "silent" not in notes and (silent := _silent(panel)) is not None:
        notes["silent"] = silent
    added_up: _AddedUp = notes.setdefault("added_up", _AddedUp())
    added_up.look(panel, known.losses_apart)
    if not is_last(panel) or known.has_other_inputs or not known.n_tp_batches:
        return
    if any(verdict.axis == AXIS for verdict in verdicts(panel)):
        return
    if any(each.axis == AXIS and known.is_used(each.stream) for each in known.desyncs.values()):
        return
    apart = [found for (axis, _), found in known.losses_apart.items() if axis == AXIS and len(found.steps) >= TIMES]
    if apart:
        first = min(apart, key=lambda each: each.steps[0])
        silent = notes.get("silent", ())
        may_be_parts = added_up.is_so and not (added_up.is_marked and silent)
        yield _finding(first, silent, may_be_parts=may_be_parts)


@dataclass(slots=True)
class _AddedUp:
    """Whether updates by losses that are apart left a parameter equal on all ranks: its gradients are added up."""

    is_so: bool = False
    is_marked: bool = False  # something tells that it is a part, or a copy
    _before: dict[str, int] = field(default_factory=dict[str, int])  # of what is equal, at the last step looked at

    def look(self, panel: Panel, losses: Mapping[tuple[str, tuple[int, ...]], stream_track.LossesApart]) -> None:
        """Compare what the steps before have left."""
        import pyarrow.compute as pc

        groups = [ranks for (axis, ranks), apart in losses.items() if axis == AXIS and apart.steps[-1] == panel.step]
        if self.is_so or not groups:
            self._before = {}
            return
        table = panel.where(port=PARAM)
        rows = table.filter(pc.and_(pc.is_valid(table["digest"]), pc.equal(table["call"], BEFORE)))
        if not rows.num_rows:
            return
        self.is_marked = self.is_marked or any(f"{AXIS}=" in text for text in codes(rows, "placement")[1])
        compared, equal = compare(rows, groups), {}
        for entry in np.flatnonzero(~compared.differs):
            ranks = groups[int(compared.group[entry])]
            if compared.sizes[entry] == len(ranks):
                equal[f"{compared.sites[compared.site[entry]]} {ranks}"] = compared.members(int(entry))[0].digest
        self.is_so = any(self._before.get(name, digest) != digest for name, digest in equal.items())
        self._before = equal


def _silent(panel: Panel) -> tuple[str, ...] | None:
    """Return parameters that differ over the ranks and do not tell their layout; None where none was looked at."""
    import pyarrow.compute as pc

    table = panel.where(port=PARAM)
    rows = table.filter(pc.and_(pc.is_valid(table["digest"]), pc.equal(table["call"], 0)))
    if not rows.num_rows:
        return None
    every = frozenset(codes(rows, "site")[1])
    is_silent = expected_equal(rows, AXIS, every) & ~expected_equal(rows, AXIS)
    compared = compare(rows, panel.groups(AXIS), is_silent)
    return tuple(dict.fromkeys(compared.sites[i] for i in compared.site[np.flatnonzero(compared.differs)]))


def _finding(apart: stream_track.LossesApart, silent: Sequence[str], *, may_be_parts: bool) -> Finding:
    low, high = min(apart.values.values()), max(apart.values.values())
    why = [f"the loss is {values_words(apart.values, digits=6)}, of the same batch, and so at {len(apart.steps)} steps"]
    if apart.since is not None:
        why.append(f"it was the same at step {apart.since}")
    elif silent:
        shown = ", ".join(silent[:SHOWN]) + (", ..." if len(silent) > SHOWN else "")
        why.append(f"parameters that differ over them from the start, and do not tell that they are parts: {shown}")
    if may_be_parts:
        why.append("what all ranks hold stays equal all the same: each rank's loss may be its part of the whole")
    remedy = Remedy(
        action="restore-replicas",
        text="make what is no part of a layer under a seed that all ranks share, or broadcast it before step 0",
    )
    return Finding(
        code=CODE, kind="desync", severity="note" if may_be_parts else "warning", step=apart.steps[0],
        rank=max(apart.values), phase="loss",
        title="tensor-parallel ranks come to other losses of the same batch", site="loss", port="value",
        cause="unknown" if may_be_parts else "init-mismatch" if apart.since is None else "replica-drift",
        confidence="possible" if may_be_parts else "likely", limit=low, actual=high, why=tuple(why),
        then=() if may_be_parts else ("the copies that they share are trained on other losses, and go apart",),
        remedy=None if may_be_parts else remedy,
    )  # fmt: skip
