"""What becomes of a rank's ended segments: sealed, and rolled up once they are old or the budget asks for it.

All that it does is a file written whole beside those that it stands for, renamed into place, and only then the others
deleted (`parts.py`): a process that dies in between leaves a recording with all its steps, each of which counts once.
It knows nothing but the directory, so the next process of the rank goes on where the last one died.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from hypocenter.record.attempts import numbers_of
from hypocenter.record.layout import KEPT_FOLDER, SEALED_PREFIX
from hypocenter.record.parts import ROWS, WINDOWS, Part, all_parts, parts_of, standing_of
from hypocenter.record.place_file import read_place

if TYPE_CHECKING:
    from hypocenter.record.rewriting import Rewriting

FULL = 0.75  # of the budget: from here on the oldest has to give way, so that what is being written has room
WHOLE_SHARE = 0.25  # of the budget: while whole rows take no more, it is others that give way
SHARE = 32  # no file that is made takes more than this part of the budget
LARGEST_BYTES = 64 << 20
LARGEST_WINDOWS = 4 << 20  # bytes of a file of windows: they are put together in memory
STALE_S = 600.0  # a file that nobody has finished for so long is nobody's
FAN_IN = 8  # files that become one
ROLLED_TOGETHER = 4  # segments, unless the budget is short
SEGMENT_STEPS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """What may be kept of one rank.

    Args:
        n_bytes: all files of the rank.
        n_steps: the last so many steps stay whole; None: as many as there is room for.
    """

    n_bytes: int
    n_steps: int | None = None

    @property
    def file_bytes(self) -> int:
        """The size in bytes of the largest file, and of the largest stream."""
        return max(1 << 16, min(LARGEST_BYTES, self.n_bytes // SHARE))

    @property
    def segment_steps(self) -> int:
        """The number of steps after which a segment ends."""
        return SEGMENT_STEPS if self.n_steps is None else max(1, min(SEGMENT_STEPS, self.n_steps // 4))


class Keeper:
    """Rolls up the past of one process. Its thread lives only while there is something to do.

    Args:
        run: the run directory.
        folder: of the rank.
        writer: this process's name among the writers of the rank.
        keep: the budget.
        warn: takes one line of text; called at most once when it fails, and once when the budget is too small.
    """

    def __init__(self, run: Path, folder: Path, writer: str, keep: Keep, warn: Callable[[str], None]) -> None:
        self._folder, self._writer, self._keep, self._warn = folder, writer, keep, warn
        self._kept = run / KEPT_FOLDER
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._current, self._done = 0, 0
        self._rewriting: Rewriting | None = None
        self._told, self._is_closing = set[str](), False

    def ended(self, current: int) -> None:
        """Note that all segments before this one are ended, and start the thread. Returns at once."""
        with self._lock:
            self._current = current
            if self._is_closing or self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="hypocenter-keep", daemon=True)
            with contextlib.suppress(RuntimeError):  # the interpreter ends
                thread.start()
                self._thread = thread

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all is done that is to do."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout_s)

    def close(self, timeout_s: float) -> None:
        """End: what is not done by then is left to the next process of this rank."""
        self.wait(timeout_s)
        self._is_closing = True

    def _run(self) -> None:
        while True:
            with self._lock:
                current = self._current
                if self._is_closing or current == self._done:
                    self._thread = None
                    return
            try:
                self.tidy(current)
            except Exception as error:  # a full disk, a lock of NFS: the next segment's end is the next chance
                why = f"{type(error).__name__}: {error}"
                self._tell(
                    "rolling", f"what is old could not be rolled up, it is tried again and may exceed --keep ({why})"
                )
            self._done = current

    def tidy(self, current: int) -> None:
        """Do all that is to do with the segments before `current`. Raises OSError and errors of Arrow's."""
        from hypocenter.record.rewriting import Rewriting  # brings pyarrow.parquet, which training need not pay

        work = self._rewriting = self._rewriting or Rewriting(self._folder, self._kept)
        self._sweep(work)
        others = {p.writer for p in parts_of(self._folder)} - {self._writer}
        writers = [*sorted(w for w in others if self._is_over(w)), self._writer]
        for writer in writers:
            work.seal(self._ended(writer, current))
        for writer in writers:
            self._roll_old(work, writer, current)
            self._gather(work, writer, current)
        self._give_way(work, writers, current)

    def _sweep(self, work: Rewriting) -> None:
        """Delete what a process that died in the middle of its work has left."""
        found = all_parts(self._folder, (*ROWS, WINDOWS))
        standing = {part.stream for part in standing_of(found)}
        for part in found:
            if part.stream not in standing:
                work.remove(part)
        for path in (p for name in (SEALED_PREFIX, *ROWS) for p in self._folder.glob(f".{name}*")):
            with contextlib.suppress(FileNotFoundError):  # it has its name by now
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink()

    def _ended(self, writer: str, current: int, kind: str = "") -> list[Part]:
        """Return parts of a writer that nobody writes to any more, oldest first."""
        parts = parts_of(self._folder, (kind,) if kind else ROWS)
        return [p for p in parts if p.writer == writer and (writer != self._writer or p.last < current)]

    def _whole(self, writer: str, current: int) -> list[Part]:
        """Return the ended parts of a writer whose readings are all there."""
        return [part for part in self._ended(writer, current, "events") if not part.is_gathered]

    def _roll_old(self, work: Rewriting, writer: str, current: int) -> None:
        n_steps = self._keep.n_steps
        if n_steps is None:
            return
        newest = work.last_step(self._ended(self._writer, current, "steps")[-1:])
        old = [part for part in self._whole(writer, current) if work.last_step([part]) <= newest - n_steps]
        while len(old) >= ROLLED_TOGETHER:
            work.roll(old[:ROLLED_TOGETHER])
            del old[:ROLLED_TOGETHER]

    def _gather(self, work: Rewriting, writer: str, current: int) -> None:
        """Join files that have become many, so that their number grows as the logarithm of the steps."""
        for kind in (*ROWS, WINDOWS):
            most_bytes = min(self._keep.file_bytes, LARGEST_WINDOWS if kind == WINDOWS else LARGEST_BYTES)
            while run := _to_gather(self._of_kind(writer, current, kind), most_bytes):
                work.gather(run)

    def _of_kind(self, writer: str, current: int, kind: str) -> list[Part]:
        """Return the parts that may be joined: of segments that are rolled up."""
        parts = self._ended(writer, current, kind)
        begin = min((part.first for part in self._whole(writer, current)), default=current)
        return [
            part for part in parts if part.last < begin or (writer != self._writer and not self._whole(writer, current))
        ]

    def _give_way(self, work: Rewriting, writers: Sequence[str], current: int) -> None:
        """Remove the oldest rows until there is room."""
        while self._n_bytes() > FULL * self._keep.n_bytes and not self._is_closing:
            if not self._let_go(work, writers, current):
                self._tell(
                    "too small",
                    f"the recording of {self._folder.name} takes more than --keep allows, and what is left of it is "
                    "findings, their surroundings and bundles, which are never removed",
                )
                return
            for writer in writers:
                self._gather(work, writer, current)

    def _let_go(self, work: Rewriting, writers: Sequence[str], current: int) -> bool:
        """Roll up the oldest thing of the kind whose turn it is; return whether there was one."""
        whole = [part for writer in writers for part in self._whole(writer, current)]
        n_whole = sum(part.sealed.stat().st_size for part in whole if part.sealed.exists())
        if n_whole > WHOLE_SHARE * self._keep.n_bytes and self._roll_oldest(work, writers, current):
            return True
        for writer in writers:
            if any(work.widen(part, doubled=False) for part in self._ended(writer, current, WINDOWS)):
                return True
        for writer in writers:
            if any(work.thin(part) for part in self._ended(writer, current, "steps")):
                return True
        if self._roll_oldest(work, writers, current):
            return True
        parts = [part for writer in writers for part in self._ended(writer, current, WINDOWS)]
        return any(work.widen(part, doubled=True) for part in parts)

    def _roll_oldest(self, work: Rewriting, writers: Sequence[str], current: int) -> bool:
        for writer in writers:
            whole = self._whole(writer, current)
            may_go = whole[:-1] if writer == self._writer else whole  # the newest may be about a failure just begun
            if oldest := may_go[: max(1, len(whole) // 4)]:
                work.roll(oldest)
                return True
        return False

    def _n_bytes(self) -> int:
        found = 0
        for folder, _, names in os.walk(self._folder):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found += (Path(folder) / name).stat().st_size
        return found

    def _is_over(self, writer: str) -> bool:
        """Return whether another process of this rank writes no more: an earlier attempt, or one that is dead."""
        numbers = numbers_of(read_place(self._folder))
        if writer in numbers and self._writer in numbers:
            return numbers[writer] < numbers[self._writer]
        host, pid = writer.split("-")[:2]  # there is no dash in a host's name here
        return host == self._writer.split("-")[0] and pid.isdigit() and not _is_alive(int(pid))

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._say(text)

    def _say(self, text: str) -> None:
        try:
            self._warn(text)
        except Exception:
            self._warn = lambda _: None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _to_gather(parts: Sequence[Part], most_bytes: int) -> Sequence[Part]:
    """Return FAN_IN neighbours of like span, or half as many where a file takes no more; () when there are too few."""
    sizes = [part.sealed.stat().st_size if part.sealed.exists() else most_bytes for part in parts]
    spans = [_tier(part) for part in parts]
    for at in range(len(parts) - FAN_IN, -1, -1):
        group = slice(at, at + FAN_IN)
        if len(set(spans[group])) == 1:
            n = sum(total <= most_bytes for total in accumulate(sizes[group]))
            if n >= FAN_IN // 2:
                return parts[at : at + n]
    return ()


def _tier(part: Part) -> int:
    n, tier = part.last - part.first + 1, 0
    while n >= FAN_IN:
        n, tier = n // FAN_IN, tier + 1
    return tier
