"""The last module frames before a failure, in execution order: each module's weights, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.nouns import Reading
from hypocenter.record.schema import READINGS, readings_from
from hypocenter.report import wording
from hypocenter.report.columns import aligned


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One call of one module, with its readings."""

    site: str
    module: str
    readings: tuple[Reading, ...]

    @property
    def is_bad(self) -> bool:
        """Whether a value in it is not finite and was not put there by the program on purpose."""
        return any(r.summary.n_nonfinite and not (r.literal_inf and not r.summary.n_nan) for r in self.readings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The last frames up to and including the first bad one; without a bad one, the last of the step."""

    frames: tuple[Frame, ...]
    n_before: int  # frames of the step before those shown
    n_after: int  # frames of the step after the first bad one
    has_bad: bool


def frames_of(readings: Sequence[Reading], weights: Sequence[Reading] = ()) -> list[Frame]:
    """Group the forward readings of one micro-batch by module call, in the order in which the calls ended.

    Args:
        readings: of one micro-batch on one rank.
        weights: of parameters (site "a.b.weight"); each goes into the frames of its module ("a.b"), port "weight".
    """
    own: dict[str, list[Reading]] = {}
    for reading in weights:
        owner, _, name = reading.site.rpartition(".")
        own.setdefault(owner, []).append(replace(reading, port=name))
    calls: dict[tuple[str, int], list[Reading]] = {}
    for reading in sorted(readings, key=lambda r: r.order):
        if reading.phase == "forward" and not reading.op and not reading.recompute:
            calls.setdefault((reading.site, reading.call), []).append(reading)
    ended = sorted(calls.items(), key=lambda item: item[1][-1].order)
    return [
        Frame(
            site=site,
            module=next((r.module for r in rows if r.module), ""),
            readings=(*own.get(site, ()), *sorted(rows, key=_place)),
        )
        for (site, _), rows in ended
    ]


def has_frames(table: pa.Table) -> bool:
    """Return whether some of these rows are of module calls."""
    return bool(pc.any(pc.and_(pc.equal(table["phase"], "forward"), pc.equal(table["op"], ""))).as_py())


def tail_of(frames: Sequence[Frame], n_frames: int) -> Tail:
    """Return the `n_frames` frames that end with the first bad one."""
    bad = next((index for index, frame in enumerate(frames) if frame.is_bad), None)
    stop = len(frames) if bad is None else bad + 1
    start = max(0, stop - n_frames)
    return Tail(frames=tuple(frames[start:stop]), n_before=start, n_after=len(frames) - stop, has_bad=bad is not None)


def in_words(tail: Tail) -> Iterator[str]:
    """Yield the frames, each under its module's name: abs min, abs max, port, dtype, shape, what stands out."""
    rows = [("abs min", "abs max", "what", "dtype", "shape", "values that stand out")]
    rows += [_row(reading) for frame in tail.frames for reading in frame.readings]
    lines = aligned(rows, right=frozenset({0, 1}))
    yield next(lines)
    for frame in tail.frames:
        yield ""
        mark = "  <-- first bad" if frame.is_bad else ""
        yield f"{wording.clean(frame.site) or '(model)'}  {wording.clean(frame.module)}".rstrip() + mark
        for _ in frame.readings:
            yield next(lines)


def _row(reading: Reading) -> tuple[str, ...]:
    values = reading.summary
    has_finite = values.n_nonfinite < values.n
    is_known = has_finite and (values.n_hist > 0 or wording.has_extremes(values))
    least = 0.0 if values.n_zero or (values.n_hist and not values.absmax) else values.absmin
    return (
        "-" if not is_known or least is None else f"{least:.2e}",
        f"{values.absmax:.2e}" if is_known else "-",
        wording.clean(reading.port),
        wording.clean(reading.dtype),
        wording.shape(reading.shape),
        ", ".join(wording.chips(values)),
    )


def _place(reading: Reading) -> tuple[int, int]:
    """Return a key that sorts weights first, then inputs, then outputs, as people read them."""
    kind = 1 if reading.port.startswith("in[") else 2 if reading.port.startswith("out[") else 0
    return kind, reading.order


@dataclass(frozen=True, slots=True, kw_only=True)
class MicrobatchReadings:
    """The readings of one micro-batch on one rank."""

    step: int
    microbatch: int
    rank: int
    is_replay: bool
    readings: tuple[Reading, ...]
    weights: tuple[Reading, ...] = ()  # parameters at this step, when they were read

    def in_words(self) -> str:
        """Say the place: `step 12, micro-batch 0, rank 3 (executed again after it failed)`."""
        replayed = " (executed again after it failed)" if self.is_replay else ""
        return f"step {self.step}, micro-batch {self.microbatch}, rank {self.rank}{replayed}"

    def named(self) -> dict[str, int | bool]:
        """Return the place by names, for JSON."""
        return {"step": self.step, "microbatch": self.microbatch, "rank": self.rank, "replay": self.is_replay}


def microbatch_to_show(table: pa.Table) -> MicrobatchReadings | None:
    """Choose the micro-batch of the first bad module reading, else of the last one; None when there is none."""
    modules = table.filter(pc.and_(pc.equal(table["phase"], "forward"), pc.equal(table["op"], "")))
    if modules.num_rows == 0:
        return None
    counts = pc.add(pc.add(modules["n_nan"], modules["n_posinf"]), modules["n_neginf"])
    planned = pc.and_(modules["literal_inf"], pc.equal(modules["n_nan"], 0))
    bad = modules.filter(pc.and_(pc.greater(counts, 0), pc.invert(planned)))
    keys = [("step", "ascending"), ("microbatch", "ascending"), ("order", "ascending")]
    row = bad.sort_by(keys).slice(0, 1) if bad.num_rows else modules.sort_by(keys).slice(modules.num_rows - 1, 1)
    place = {name: row[name][0].as_py() for name in ("step", "microbatch", "rank", "replay")}
    parameters = table.filter(pc.and_(pc.equal(table["phase"], "param"), pc.equal(table["port"], "value")))
    return MicrobatchReadings(
        step=place["step"], microbatch=place["microbatch"], rank=place["rank"], is_replay=place["replay"],
        readings=_at(modules, place), weights=_at(parameters, {**place, "microbatch": None}),
    )  # fmt: skip


def _at(table: pa.Table, place: dict[str, int | bool | None]) -> tuple[Reading, ...]:
    for name, value in place.items():
        if value is not None:
            table = table.filter(pc.equal(table[name], value))
    return tuple(readings_from(table.select(READINGS.names)))
