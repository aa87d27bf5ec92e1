"""The latest steps of a process, each appended as it ends: what a SIGKILL leaves of those that no stream holds yet.

A file of entries: a length and a CRC-32 (unsigned, 32 bits, little endian), then so many bytes of MessagePack each.
The first says how many batches the two streams held when the journal was begun; the others are steps, and the rows that
norms of many gradients share. The journal is emptied once its steps are in the streams. Who reads a stream reads the
journal first: a stream that holds more batches by then has the rows already.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from hypocenter.errors import first_line
from hypocenter.nouns import Reading, StepRecord
from hypocenter.record.block import Block
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.record.repair import Mended, laid_out, mended_rows, rows_of
from hypocenter.record.schema import READINGS, Row, reading_row, readings_from, whole_row
from hypocenter.record.stream import AppendedFile

FRAME = Struct("<II")
_LARGEST_BYTES = 1 << 28  # of a journal: it is emptied long before


class _Entry(msgspec.Struct, array_like=True, tag=True, frozen=True):
    pass


class Head(_Entry, frozen=True):
    """How many batches each stream held when the journal was begun."""

    events: int
    steps: int


_NO_HEAD = Head(events=-1, steps=-1)  # of a journal whose head cannot be read: no stream has so few


class Template(_Entry, frozen=True):
    """Rows that the norms of several updates share; they are numbered from 0 in the order in which they come."""

    rows: list[Any]


class Norms(msgspec.Struct, array_like=True, frozen=True):
    """One update's norms: see `NormRows`."""

    template: int
    step: int
    first_order: int
    norms: bytes  # float64
    bad: list[int]


class Step(_Entry, frozen=True):
    """What one call of `Writer.write` was given: rows of readings and of step records, in the order of the columns."""

    readings: list[Any]
    norms: Norms | None
    steps: list[Any]


_decode = msgspec.msgpack.Decoder(Head | Template | Step).decode


class Journal:
    """A journal that grows. Every method may raise OSError.

    Args:
        path: of a file that does not exist.
        mended: told of values that could not be kept as they were.
    """

    def __init__(self, path: Path, mended: Mended) -> None:
        self._file, self._mended = AppendedFile(path), mended
        self._encode: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_plain).encode
        self._numbers: dict[int, int] = {}  # id of a template -> its number here

    @property
    def n_bytes(self) -> int:
        """The size of the steps in it, in bytes."""
        return self._file.n_bytes

    def append(
        self, head: Head, readings: Sequence[Reading], norms: NormRows | None, steps: Sequence[StepRecord]
    ) -> tuple[list[Row], list[Row]]:
        """Add a step in one piece; on failure the file is cut back to what it was.

        Args:
            head: goes before the first entry.
            readings: of the step.
            norms: that come after them.
            steps: its record, if it is over.

        Returns:
            The rows of the readings and of the records, with what could not be kept as it was mended.
        """
        pieces = [] if self._file.n_bytes else [self._encode(head)]
        packed = None
        if norms is not None:
            if id(norms.template) not in self._numbers:
                pieces += self._introduced(norms.template)
            packed = Norms(
                template=self._numbers[id(norms.template)], step=norms.step, first_order=norms.first_order,
                norms=np.array(norms.norms, np.float64).tobytes(), bad=sorted(norms.bad),
            )  # fmt: skip
        rows, records = rows_of(readings, steps, self._mended)
        try:
            step = self._encode(Step(readings=rows, norms=packed, steps=records))
        except Exception as error:  # a value of whatever type stands where a number or a text should
            self._mended(error)
            rows, records = mended_rows(readings), mended_rows(steps)
            step = self._encode(Step(readings=rows, norms=packed, steps=records))
        pieces.append(step)
        framed = b""
        for piece in pieces:  # mostly one
            framed += FRAME.pack(len(piece), zlib.crc32(piece)) + piece
        self._file.append(framed)
        return rows, records

    def clear(self) -> None:
        """Forget all steps: the streams hold them."""
        self._file.clear()
        self._numbers.clear()

    def close(self, *, remove: bool) -> None:
        """Close the file; with `remove`, delete it."""
        self._file.close()
        if remove:
            self._file.path.unlink(missing_ok=True)

    def _introduced(self, template: NormTemplate) -> list[bytes]:
        """Return the entry of a template that the journal does not hold yet."""
        self._numbers[id(template)] = len(self._numbers)
        if not template.entry:
            try:
                template.entry = self._encode(Template(rows=list(map(reading_row, template.rows))))
            except Exception as error:
                self._mended(error)
                template.entry = self._encode(Template(rows=mended_rows(template.rows)))
        return [template.entry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Journaled:
    """What a journal held when it was read."""

    head: Head
    events: pa.RecordBatch | None = None
    steps: pa.RecordBatch | None = None
    problem: str = ""  # empty: it is whole


def read_journal(path: Path) -> Journaled | None:
    """Read a journal; None where there is none, or an empty one. Damage is said, not raised."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return Journaled(head=_NO_HEAD, problem=f"{path.name}: cannot be read ({error.strerror})")
    head, block, n_steps = None, Block(lambda _: None), 0
    templates: list[NormTemplate] = []
    problem = ""
    try:
        for entry in (_decode(piece) for piece, _ in entries(data)):
            if isinstance(entry, Head):
                head = head or entry
            elif isinstance(entry, Template):
                templates.append(_template(entry))
            else:
                block.add(list(map(whole_row, entry.readings)), _norms(entry.norms, templates), _rows(entry.steps))
                n_steps += 1
    except Exception as error:  # hostile bytes: whatever is raised is a verdict on the file
        problem = f"{path.name}: damaged after {n_steps:,} steps ({first_line(error)})"
    if head is None:
        return Journaled(head=_NO_HEAD, problem=problem) if problem else None
    try:
        return Journaled(head=head, events=block.events(), steps=block.steps(), problem=problem)
    except Exception as error:
        return Journaled(head=head, problem=f"{path.name}: holds rows that are none ({first_line(error)})")


def entries(data: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield each whole entry, and the byte at which it ends; the last one may still be being written.

    Raises:
        ValueError: one is damaged.
    """
    at = 0
    while at + FRAME.size <= len(data):
        length, crc = FRAME.unpack_from(data, at)
        piece = data[at + FRAME.size : at + FRAME.size + length]
        if len(piece) < length:
            return
        if zlib.crc32(piece) != crc:
            raise ValueError("its checksum is another")
        at += FRAME.size + length
        yield piece, at


def _rows(rows: Iterable[Any]) -> list[Row]:
    return [tuple(row) for row in rows]


def _template(entry: Template) -> NormTemplate:
    return NormTemplate(list(readings_from(laid_out(READINGS, list(map(whole_row, entry.rows)), lambda _: None))))


def _norms(packed: Norms | None, templates: Sequence[NormTemplate]) -> NormRows | None:
    if packed is None:
        return None
    template, norms = templates[packed.template], np.frombuffer(packed.norms, np.float64).tolist()
    if len(norms) != len(template.rows) or not set(packed.bad) <= set(range(len(norms))):
        raise ValueError("norms of other gradients than it names")
    return NormRows(template, step=packed.step, first_order=packed.first_order, norms=norms, bad=frozenset(packed.bad))


def _plain(value: Any) -> Any:
    """Return a number or an array of NumPy as plain Python."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__}")
