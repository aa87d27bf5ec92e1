"""Which kinds of log there are, and how the kind of a file is told: by its content, never by its name alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypocenter.catalogue import Catalogue, about
from hypocenter.compare.curves.collector import Collector
from hypocenter.compare.curves.curve import Curve
from hypocenter.errors import HypocenterError, NoRecordingError
from hypocenter.recognising import by_name, recognised, unknown
from hypocenter.record.address import address_of, is_address
from hypocenter.record.elsewhere import brought

HEAD_BYTES = 1 << 20  # of a file that readers may look at to tell whether it is theirs


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a reader sees of a path before it is read."""

    path: Path
    is_directory: bool
    start: bytes  # of the file; empty for a directory
    size_bytes: int

    @property
    def is_text(self) -> bool:
        """Whether the start of the file looks like text: it is not empty and has no zero byte."""
        return b"\0" not in self.start and bool(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of log.

    `accepts` gives how sure it is (0: not mine, 1: certain); `read` puts what it finds into a Collector, tells of what
    is damaged as problems, and raises only NotALogError.
    """

    name: str
    about: str
    accepts: Callable[[Head], float]
    read: Callable[[Path, Collector], None]
    counts_from: int | None  # the number that this kind gives its first step
    means: tuple[str, ...] = ()


class NotALogError(HypocenterError):
    """A file that is no training log, or none from which a curve can be had."""

    slug = "no-curve"
    exit_code = 4


READERS: Catalogue[Reader] = Catalogue("hypocenter.compare.curves.readers", "hypocenter.curve_readers")


def reader(
    name: str, *, accepts: Callable[[Head], float], counts_from: int | None, means: tuple[str, ...] = ()
) -> Callable[[Callable[[Path, Collector], None]], Callable[[Path, Collector], None]]:
    """Register a function as the reader of this kind; the first line of its docstring says what is read."""
    return READERS.adding(
        name,
        lambda read: Reader(
            name=name, about=about(read), accepts=accepts, read=read, counts_from=counts_from, means=means
        ),
    )


def read_curve(path: Path | str, *, kind: str | None = None, on: str = "") -> Curve:
    """Read the curves of a log or of a recorded run.

    Args:
        path: a file, a run directory, or a directory of TensorBoard or W&B files.
        kind: name of a reader; guessed from the content when not given.
        on: what looks at the ranks of a recording (`record.workers.workers_of`).

    Raises:
        NoRecordingError: nothing is there, or it may not be read.
        UnknownNameError: no reader is called `kind`.
        NotALogError: nobody can read it, or there is no number in it.
    """
    path = brought(address_of(path)) if is_address(path) else Path(path)
    try:
        chosen = by_name(READERS, kind, "kind of log", "--kind") if kind else _guessed(head_of(path))
        collector = Collector(str(path), chosen.name, counts_from=chosen.counts_from, means=chosen.means, on=on)
        chosen.read(path, collector)
    except OSError as error:
        raise NoRecordingError("the log cannot be opened", where=str(path), why=error.strerror or str(error)) from error
    except MemoryError as error:
        raise NotALogError("the log does not fit into memory", where=str(path)) from error
    curve = collector.curve()
    if not curve.n_points:
        raise NotALogError(
            f"there is no entry in this log (read as {chosen.name})", where=str(path),
            why="; ".join(curve.problems) or "no line has both a step and a number",
            fix="name another kind with --kind: " + ", ".join(READERS.entries()),
        )  # fmt: skip
    return curve


def head_of(path: Path) -> Head:
    """Read what tells the kind of a log: the first megabyte of a file. Raises OSError."""
    if path.is_dir():
        return Head(path=path, is_directory=True, start=b"", size_bytes=0)
    if not path.is_file():
        path.stat()  # raises FileNotFoundError if there is none
        raise NotALogError("neither a file nor a directory", where=str(path))
    with path.open("rb") as file:
        return Head(path=path, is_directory=False, start=file.read(HEAD_BYTES), size_bytes=path.stat().st_size)


def is_log(path: Path | str) -> bool:
    """Return whether a reader accepts this as a log and it is no run directory of ours: for commands that take both."""
    try:
        return _guessed(head_of(Path(path))).name != "recording"
    except (OSError, HypocenterError):
        return False


def _guessed(head: Head) -> Reader:
    found = recognised(READERS, head)
    if found is None:
        fix = "name the kind with --kind, or write a CSV with the columns step,loss,grad_norm,lr"
        empty = "the file is empty" if not head.is_directory and not head.size_bytes else ""
        raise unknown(NotALogError, "kind of log", READERS, where=head.path, fix=fix, empty=empty)
    return found
