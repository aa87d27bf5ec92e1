"""The files of one rank, and its rows of one kind put together from all of them.

The readings of one rank batch by batch, in the order they were written: for questions about millions of rows.

`RecordedRun.scan` gives a rank's rows as one table; here only a batch is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from hypocenter.record import attempts, windows
from hypocenter.record.gather import Want
from hypocenter.record.layout import SEALED_SUFFIX, sealed_path
from hypocenter.record.parts import WINDOWS, Part, parts_of
from hypocenter.record.place_file import read_place
from hypocenter.record.salvage import Salvaged, Verdict, salvage, sealed_batches, sealed_rows, stream_batches
from hypocenter.record.schema import READINGS, STEPS, encoded

SCHEMAS = {"events": READINGS, "steps": STEPS}
SCHEMAS_OF = {**SCHEMAS, WINDOWS: windows.WINDOWS}
"""Columns of each kind of file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of a rank's rows of one kind once all of them were read and checked."""

    n_rows: int = 0  # on disk, wanted or not
    sites: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """Rows of one kind of one rank, in the order in which they were written."""

    table: pa.Table
    known: Knowledge
    whole: pa.Table | None = None  # all rows, if they are few


def read_rank(folder: Path, kind: str, want: Want, *, room_bytes: int = 0) -> RankRows:
    """Read rows of one kind from all files of a rank. What is damaged is said, never raised.

    Args:
        folder: of the rank.
        kind: events, steps, windows.
        want: rows and columns to keep.
        room_bytes: give all rows as well when they take no more than this.

    Raises:
        CorruptRecordingError: a file was written by a newer Hypocenter.
    """
    try:
        parts = parts_of(folder, (kind,))
    except OSError as error:
        problem = f"{folder.name} cannot be read: {error.strerror}"
        return RankRows(table=_empty(kind, want), known=Knowledge(problems=(problem,)))
    numbers = attempts.numbers_of(read_place(folder)) if len(parts) > 1 else {}
    cuts = attempts.cuts(numbers, spans_of(folder, numbers)) if numbers else {}
    wanted = {writer: attempts.before(want, step) for writer, step in cuts.items()}
    found = [(part.writer, _read(part, wanted.get(part.writer, want), room_bytes)) for part in parts]
    found.sort(key=lambda pair: (numbers.get(pair[0], 0), pair[1].started_ns))
    wholes = [_cut(one.whole, cuts.get(writer)) for writer, one in found if one.whole is not None]
    return RankRows(
        table=pa.concat_tables([_empty(kind, want), *(one.table for _, one in found)]),
        known=Knowledge(
            n_rows=sum(one.n_rows for _, one in found),
            sites=frozenset[str]().union(*(one.sites for _, one in found)),
            problems=tuple(one.problem for _, one in found if one.problem),
            writers=tuple(dict.fromkeys(writer for writer, _ in found)),
        ),
        whole=pa.concat_tables([SCHEMAS_OF[kind].empty_table(), *wholes]) if len(wholes) == len(found) else None,
    )


def spans_of(folder: Path, numbers: Mapping[str, int]) -> dict[str, attempts.Span]:
    """Return writer -> the steps that it completed, of those writers whose attempts have numbers."""
    found: dict[str, attempts.Span] = {}
    for part in parts_of(folder, ("steps", WINDOWS)):
        if part.writer not in numbers:
            continue
        columns = ("step", "last_step") if part.kind == WINDOWS else ("step",)
        steps = [
            value for column in _read(part, Want(columns=columns), 0).table.columns for value in column.to_pylist()
        ]
        known = found.get(part.writer)
        steps += [known.first, known.last] if known is not None else []
        if steps:
            found[part.writer] = attempts.Span(number=numbers[part.writer], first=min(steps), last=max(steps))
    return found


def _cut(table: pa.Table, step: int | None) -> pa.Table:
    if step is None:
        return table
    kept = [batch.filter(attempts.is_before(step)(batch)) for batch in table.to_batches()]
    return pa.Table.from_batches(kept, schema=table.schema)


def _empty(kind: str, want: Want) -> pa.Table:
    schema = encoded(SCHEMAS_OF[kind]) if want.is_encoded else SCHEMAS_OF[kind]
    names = schema.names if want.columns is None else want.columns
    return pa.Table.from_batches([], pa.schema([schema.field(name) for name in names]))  # empty_table() is slow


def _read(part: Part, want: Want, room_bytes: int) -> Salvaged:
    """Return the rows of one part, from whichever of its two files holds more."""
    schema, sealed = SCHEMAS_OF[part.kind], sealed_path(part.stream)
    label = f"{part.stream.parent.name}/"
    try:
        found, name = salvage(part.stream, schema, want, room_bytes=room_bytes), part.stream.name
        enough = found.n_rows if found.problem else found.n_rows + 1
        if sealed.exists() and sealed_rows(sealed) >= enough:
            other = salvage(sealed, schema, want, room_bytes=room_bytes)
            if other.n_rows >= enough:
                found, name = other, sealed.name
    except FileNotFoundError:
        found, name = _read_sealed(part, want, room_bytes), sealed.name
    return replace(found, problem=f"{label}{name}: {found.problem}") if found.problem else found


def _read_sealed(part: Part, want: Want, room_bytes: int) -> Salvaged:
    try:
        return salvage(sealed_path(part.stream), SCHEMAS_OF[part.kind], want, room_bytes=room_bytes)
    except FileNotFoundError:
        return Salvaged(table=_empty(part.kind, want), problem="vanished while it was read")


class StepStream:
    """Batches of the columns asked for. `problem` is what turned out to be damaged, once all were taken.

    Args:
        paths: the files that hold a rank's readings, in order.
        columns: names, of record.schema.READINGS.
    """

    def __init__(self, paths: Sequence[Path], columns: Sequence[str]) -> None:
        self.problem = ""
        self._paths = paths
        self._schema = pa.schema([READINGS.field(name) for name in columns])

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for path in self._paths:
            verdict = Verdict()
            read = sealed_batches if path.suffix == SEALED_SUFFIX else stream_batches
            try:
                yield from read(path, self._schema, verdict, projected=True)
            except FileNotFoundError:
                verdict.problem = "vanished while it was read"
            if verdict.problem and not self.problem:
                self.problem = f"{path.parent.name}/{path.name}: {verdict.problem}"


def files_of_one(folder: Path, *, is_alone: bool = False) -> list[Path]:
    """Return the files with all readings of a rank, in order; [] when several processes wrote them.

    Args:
        folder: of the rank.
        is_alone: none as well where there are both a stream and its sealed form.
    """
    try:
        parts = parts_of(folder, ("events",))
    except OSError:
        return []
    is_doubled = is_alone and any(part.stream.exists() and sealed_path(part.stream).exists() for part in parts)
    if is_doubled or len({part.writer for part in parts}) != 1:
        return []
    return [_fuller(part) for part in parts]


def _fuller(part: Part) -> Path:
    """Return, of a stream and its sealed form, the one with more rows."""
    sealed = sealed_path(part.stream)
    if not sealed.exists() or not part.stream.exists():
        return part.stream if part.stream.exists() else sealed
    n_streamed = salvage(part.stream, READINGS, Want(columns=("step",))).n_rows
    return sealed if sealed_rows(sealed) > n_streamed else part.stream
