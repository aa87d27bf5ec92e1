"""Files of ended segments made into others: sealed, rolled up, put together. Memory holds one file's rows at most."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

from hypocenter.record import islands, windows
from hypocenter.record.layout import FORMAT, journal_path
from hypocenter.record.parts import WINDOWS, Part, gathered, parts_of
from hypocenter.record.rank_files import SCHEMAS_OF
from hypocenter.record.salvage import Verdict, sealed_batches, stream_batches
from hypocenter.record.schema import STEPS
from hypocenter.record.seal import write_batches

_THINNED = b"hypocenter.thinned"  # of a file of step records: only those on islands are left
_WIDTH = b"hypocenter.width"  # of a file of windows: all are at least as wide
MOST_STEPS = 1 << 40  # of a window that grows no more


class Rewriting:
    """Changes of the files in one rank's folder. Each method may raise OSError and errors of Arrow's.

    Args:
        folder: of the rank.
        kept: `RUN/kept`.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder, self._islands = folder, islands.Islands(folder=kept)

    def seal(self, parts: Sequence[Part]) -> None:
        """Seal streams that have ended, and ask for islands of those of their steps that have to stay whole."""
        for first in sorted({part.first for part in parts if part.stream.exists()}):
            of_one = {part.kind: part for part in parts if part.first == first and not part.is_gathered}
            steps = self._table(of_one["steps"]) if "steps" in of_one else STEPS.empty_table()
            bad = islands.bad_steps(steps)
            if "events" in of_one:
                skipped = islands.skipped_steps(steps)
                for batch in self._batches(of_one["events"], islands.EVENT_READS):
                    bad |= islands.bad_in(batch, skipped)
            self._islands.ask(bad, "bad")
            self._islands.ask(islands.odd_steps(steps), "odd")
            for part in of_one.values():
                if part.stream.exists():
                    self._seal(part)
            for part in of_one.values():
                journal_path(part.stream).unlink(missing_ok=True)

    def last_step(self, parts: Sequence[Part]) -> int:
        """Return the last step in these parts; -1 when there is none. Of sealed files only the footer is read."""
        found = -1
        for part in parts:
            if part.sealed.exists():
                metadata = pq.read_metadata(part.sealed)
                at = metadata.schema.to_arrow_schema().get_field_index("step")
                groups = (metadata.row_group(i).column(at).statistics for i in range(metadata.num_row_groups))
                found = max([found, *(int(each.max) for each in groups if each is not None and each.has_min_max)])
        return found

    def roll(self, parts: Sequence[Part]) -> None:
        """Replace these segments' readings and records by windows, but for rows that lie on an island."""
        first, last = parts[0].first, parts[-1].last
        self._windows_of(parts, first, last)
        kept = self._islands.listed()
        target = gathered(self._folder, "events", parts[0].writer, first, last)
        self._replace(parts, target, lambda batch: batch.filter(islands.within(kept, batch["step"])))

    def gather(self, parts: Sequence[Part]) -> None:
        """Join several files to one."""
        target = gathered(self._folder, parts[0].kind, parts[0].writer, parts[0].first, parts[-1].last)
        if parts[0].kind != WINDOWS:
            self._replace(parts, target, lambda batch: batch)
            return
        widths = [int(self._said(part, _WIDTH) or windows.WIDTH) for part in parts]
        tables = [self._table(part) for part in parts]
        # Each keeps its width: what is old may be wide already while what is newer is not.
        merged = [windows.merge([t for t, w in zip(tables, widths, strict=True) if w == width], width)
                  for width in dict.fromkeys(widths)]  # fmt: skip
        self._write_windows(pa.concat_tables(merged), target, min(widths))
        self._let_go(parts, target)

    def widen(self, part: Part, *, doubled: bool) -> bool:
        """Make a file's windows wider: WIDE, or twice as wide. Return whether it has become smaller.

        Args:
            part: of windows.
            doubled: also those that are WIDE already.
        """
        width = int(self._said(part, _WIDTH) or windows.WIDTH)
        wider = windows.WIDE if width < windows.WIDE else 2 * width
        if (width >= windows.WIDE and not doubled) or wider > MOST_STEPS:
            return False
        table = self._table(part)
        n_before = table.num_rows
        merged = windows.merge([table], wider)
        self._write_windows(merged, part, wider)
        return merged.num_rows < n_before

    def thin(self, part: Part) -> bool:
        """Keep step records on islands only, where windows tell of the others. Return whether any has gone."""
        told = {n for p in parts_of(self._folder, (WINDOWS,)) if p.writer == part.writer
                for n in range(p.first, p.last + 1)}  # fmt: skip
        if self._said(part, _THINNED) or not told.issuperset(range(part.first, part.last + 1)):
            return False
        kept = self._islands.listed()
        schema = STEPS.with_metadata({**(pq.read_schema(part.sealed).metadata or {}), _THINNED: b"1"})
        rows = (batch.filter(islands.within(kept, batch["step"])) for batch in self._batches(part))
        write_batches(rows, schema, part.sealed)
        return True

    def remove(self, part: Part) -> None:
        """Delete the files of a part."""
        for path in (part.sealed, part.stream, journal_path(part.stream)):
            path.unlink(missing_ok=True)

    def _windows_of(self, parts: Sequence[Part], first: int, last: int) -> None:
        writer = parts[0].writer
        steps = [p for p in parts_of(self._folder, ("steps",))
                 if p.writer == writer and first <= p.first and p.last <= last]  # fmt: skip
        found = [windows.of_readings(b) for part in parts for b in self._batches(part, windows.WINDOW_READS)]
        found += [windows.of_steps(batch) for part in steps for batch in self._batches(part)]
        target = gathered(self._folder, WINDOWS, writer, first, last)
        self._write_windows(windows.merge(found, windows.WIDTH), target, windows.WIDTH)

    def _write_windows(self, table: pa.Table, target: Part, width: int) -> None:
        metadata = {b"hypocenter.format": str(FORMAT).encode(), _WIDTH: str(width).encode()}
        schema = windows.WINDOWS.with_metadata(metadata)
        batches = table.replace_schema_metadata(metadata).to_batches(max_chunksize=65_536)
        write_batches(batches, schema, target.sealed)

    def _replace(self, parts: Sequence[Part], target: Part, keep: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        metadata = dict(pq.read_schema(parts[0].sealed).metadata or {})
        if not all(self._said(part, _THINNED) for part in parts):
            metadata.pop(_THINNED, None)
        rows = (keep(batch) for part in parts for batch in self._batches(part))
        write_batches(rows, SCHEMAS_OF[target.kind].with_metadata(metadata), target.sealed)
        self._let_go(parts, target)

    def _let_go(self, parts: Iterable[Part], target: Part) -> None:
        for part in parts:
            if part.sealed != target.sealed:
                self.remove(part)

    def _seal(self, part: Part) -> None:
        with pa.OSFile(str(part.stream), "rb") as file, ipc.open_stream(file) as reader:
            metadata = reader.schema.metadata
        write_batches(self._batches(part), SCHEMAS_OF[part.kind].with_metadata(metadata), part.sealed)
        part.stream.unlink(missing_ok=True)

    def _table(self, part: Part) -> pa.Table:
        return pa.Table.from_batches(list(self._batches(part)), SCHEMAS_OF[part.kind])

    def _batches(self, part: Part, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield rows of a stream as far as it is whole, or of its sealed form, which must be whole."""
        schema, verdict = SCHEMAS_OF[part.kind], Verdict()
        part_of = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        if part.stream.exists():
            yield from stream_batches(part.stream, part_of, verdict, projected=columns is not None)
            return
        yield from sealed_batches(part.sealed, part_of, verdict, projected=columns is not None)
        if verdict.problem:
            raise OSError(f"{part.sealed.name}: {verdict.problem}")

    def _said(self, part: Part, key: bytes) -> bytes:
        try:
            return (pq.read_schema(part.sealed).metadata or {}).get(key, b"")
        except FileNotFoundError:
            return b""
