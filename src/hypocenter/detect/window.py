"""What a rule sees: one step of one rank, and what earlier steps of that rank have shown."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from hypocenter.detect.batch_fields import Field
from hypocenter.detect.batch_rows import OneRow, Pairs, RowTrack
from hypocenter.detect.batches import Loaders, Repeats
from hypocenter.detect.diary import SCALED_GRAD, Entry, entry_of
from hypocenter.detect.peaks import Peaks
from hypocenter.detect.scale_track import ScaleTrack, Skip
from hypocenter.detect.spikes import Series
from hypocenter.nouns import Reading, StepRecord

KEPT_RECORDS = 1024  # step records of the past that rules may look at
KEPT_ROWS = 64  # readings of one site and port that rules may look at
CULPRIT = "culprit"  # port of a row of phase scaler: site is the parameter whose gradient went bad first in backward


@dataclass(slots=True, kw_only=True)
class History:
    """What a rank's earlier steps have shown. Written by the engine after each step, read by rules."""

    _records: deque[StepRecord] = field(default_factory=lambda: deque[StepRecord](maxlen=KEPT_RECORDS))
    _passed: deque[Iterable[StepRecord]] = field(
        default_factory=lambda: deque[Iterable[StepRecord]](maxlen=KEPT_RECORDS)
    )  # that nobody has looked at yet
    healthy_nonfinite: set[tuple[str, str]] = field(default_factory=set)  # `healthy_key`s in steps where all was well
    scale: ScaleTrack = field(default_factory=ScaleTrack)  # what the loss scale has done
    peaks: Peaks = field(default_factory=Peaks)  # of sites near their format's limit
    loss: Series = field(default_factory=Series)  # of finite steps; HC401 adds to both
    norm: Series = field(default_factory=Series)  # of the gradient
    repeats: Repeats = field(default_factory=Repeats)  # of batches; HC411 adds to it
    loaders: Loaders = field(default_factory=Loaders)  # HC411 adds to it
    row_track: RowTrack = field(default_factory=RowTrack)  # of the batches; HC411 adds to it
    one_row: OneRow = field(default_factory=OneRow)  # HC411 adds to it
    pairs: Pairs = field(default_factory=Pairs)  # HC413 adds to it
    told_fields: set[int] = field(default_factory=set[int])  # steps that HC412 and HC413 have told of
    told_again: set[int] = field(default_factory=set[int])  # steps that HC411 has told of
    fields: dict[str, Field] = field(default_factory=dict)  # tensors of the batch by site; HC412 adds to it
    _rows: dict[tuple[str, str], deque[Reading]] = field(default_factory=dict)

    @property
    def records(self) -> deque[StepRecord]:
        """The records of earlier steps, at most KEPT_RECORDS."""
        for passed in self._passed:
            self._records.extend(passed)
        self._passed.clear()
        return self._records

    def pass_by(self, records: Iterable[StepRecord]) -> None:
        """Add records of steps that no rule was asked at; they are made when somebody looks back."""
        self._passed.append(records)

    def rows(self, site: str, port: str) -> tuple[Reading, ...]:
        """Return earlier readings of a site and port that the engine was given, oldest first, at most KEPT_ROWS."""
        return tuple(self._rows.get((site, port), ()))

    def remember(self, window: Window, *, is_healthy: bool) -> None:
        """Take a step that all rules have seen into the past."""
        if window.record is not None:
            self.pass_by((window.record,))
        self._remember_scale(window)
        for reading in window.readings:
            if reading.replay:
                continue
            self.peaks.add(reading)
            key = reading.site, reading.port
            self._rows.setdefault(key, deque(maxlen=KEPT_ROWS)).append(reading)
            if is_healthy and reading.summary.n_nonfinite:
                self.healthy_nonfinite.add(healthy_key(reading))

    def _remember_scale(self, window: Window) -> None:
        scale = window.loss_scale
        if scale is None:
            return
        if (entry := window.entry) is not None:
            know(self.scale, entry)
        is_skipped = window.skipped
        self.scale.add(window.step, scale, skipped=is_skipped, culprit=window.culprit if is_skipped else "")


def healthy_key(reading: Reading) -> tuple[str, str]:
    """Return the key by which `History.healthy_nonfinite` knows a reading: site and port, and name of an operation."""
    return reading.site, f"{reading.op} {reading.port}" if reading.op else reading.port


def know(track: ScaleTrack, entry: Entry) -> None:
    """Tell a track what the diary knows of the scaler and of the gradients it looked at."""
    track.is_dynamic = bool(entry.facts.get("is_dynamic", 1.0))
    track.floor = entry.facts.get("min_scale", track.floor)
    track.growth_factor = entry.facts.get("growth_factor", track.growth_factor)
    for row in entry.gradients:
        if entry.scale > 0 and math.isfinite(row.summary.absmax):
            track.note_gradient(row.site, row.summary.absmax / entry.scale)


@dataclass(frozen=True, kw_only=True)
class Window:
    """One step of one rank: its record, if it was completed, and its readings in execution order."""

    rank: int
    step: int
    record: StepRecord | None = None
    readings: tuple[Reading, ...] = ()
    history: History = field(default_factory=History)

    @cached_property
    def by_phase(self) -> Mapping[str, list[Reading]]:
        """The readings that the run itself made, by phase, in execution order: no replay, no recompute."""
        found: defaultdict[str, list[Reading]] = defaultdict(list)
        for reading in self.readings:
            if not reading.replay and not reading.recompute:
                found[reading.phase].append(reading)
        return found

    def of(self, *phases: str) -> Sequence[Reading]:
        """Return the readings of several phases, as `by_phase` has them of one."""
        return [r for r in self.readings if r.phase in phases and not r.replay and not r.recompute]

    @cached_property
    def loss_finite(self) -> bool:
        """Whether neither the record nor a reading of the loss is non-finite."""
        if self.record is not None and self.record.loss is not None and not math.isfinite(self.record.loss):
            return False
        return not any(r.summary.n_nonfinite for r in self.by_phase["loss"] if r.port == "value" and r.site == "loss")

    @cached_property
    def grads_finite(self) -> bool:
        """Whether no parameter's gradient is known to be non-finite."""
        if self.record is not None and (self.record.n_bad_grads or not _finite(self.record.grad_norm)):
            return False
        return not any(r.summary.n_nonfinite for r in self.by_phase["grad"])

    @cached_property
    def entry(self) -> Entry | None:
        """What the loss-scale diary has of this step; None without a loss scaler."""
        return entry_of(self.readings)

    @property
    def loss_scale(self) -> float | None:
        """The scale of the step; None without a loss scaler, or one that is not finite."""
        scale = self.record.loss_scale if self.record is not None else None
        if scale is None and (entry := self.entry) is not None:
            scale = entry.scale
        return scale if scale is not None and scale > 0 and math.isfinite(scale) else None

    @property
    def skipped(self) -> bool:
        """Whether a loss scaler has skipped the update of one optimizer at least."""
        if self.record is not None and self.record.skipped:
            return True
        return (entry := self.entry) is not None and entry.n_skipped > 0

    @property
    def skip(self) -> Skip | None:
        """The skipped update of this step if its loss scale is known; else None."""
        scale = self.loss_scale
        if scale is None or not self.skipped:
            return None
        return Skip(step=self.step, scale=scale, culprit=self.culprit, is_first=self.history.scale.n_in_a_row == 0)

    @property
    def culprit(self) -> str:
        """The parameter at which a skipped step first had a bad gradient on the way back: the last in the model.

        Everything before it in the model gets its bad values in backward. "" when no gradient was bad or none is known.
        """
        named = [r.site for r in self.by_phase["scaler"] if r.port == CULPRIT]
        if named:
            return named[-1]
        seen = [r for r in self.by_phase["scaler"] if r.port == SCALED_GRAD]
        bad = [r for r in seen if r.summary.n_nonfinite]
        if not bad or len(bad) == len(seen):  # all of them: clipping may have spread it
            return ""
        return max(bad, key=lambda r: r.order).site


def _finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
