"""Which kinds of dump there are, how the kind of a path is told by its content, and the import of one."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hypocenter.catalogue import Catalogue, about
from hypocenter.errors import HypocenterError, NoRecordingError
from hypocenter.importing.recording import Recording, Tally
from hypocenter.nouns import Imported, Run
from hypocenter.recognising import by_name, recognised, unknown
from hypocenter.record.layout import is_recording, new_run_directory, remove_recording

HEAD_BYTES = 1 << 16  # of a file that readers may look at to tell whether it is theirs
_MOST_NAMES = 20_000  # files of a folder that are looked at to tell its kind
_DEPTH = 7  # of folders: of MindSpore's dumps values lie six deep


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a reader sees of a path before it is read."""

    path: Path
    is_directory: bool
    start: bytes = b""  # of the file; empty for a directory
    names: tuple[str, ...] = ()  # of the files below a directory, relative, with / between parts; the first ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One kind of dump.

    `accepts` gives how sure it is (0: not mine, 1: certain). `read` hands readings to the Recording rank by rank and in
    order of steps, tells it what is damaged, and raises only HypocenterError.
    """

    name: str
    about: str
    accepts: Callable[[Head], float]
    read: Callable[[Path, Recording], None]


class NotADumpError(HypocenterError):
    """A path that holds no dump, or none from which a run can be made."""

    slug = "no-dump"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What an import has made: the run directory, its run and the counts."""

    directory: Path
    run: Run
    tally: Tally


IMPORTERS: Catalogue[Importer] = Catalogue("hypocenter.importing.kinds", "hypocenter.importers")

Read = Callable[[Path, Recording], None]


def importer(name: str, *, accepts: Callable[[Head], float]) -> Callable[[Read], Read]:
    """Register a function as the reader of this kind; the first line of its docstring says what is read."""
    return IMPORTERS.adding(name, lambda read: Importer(name=name, about=about(read), accepts=accepts, read=read))


def import_dump(path: Path, out: str | None, *, kind: str | None = None, force: bool = False) -> Done:
    """Make a run directory from a dump.

    Args:
        path: a file or a folder of the other tool.
        out: the new run directory; a fresh one below `runs/` when None.
        kind: name of an importer; guessed from the content when not given.
        force: replace a recording that is in `out`.

    Raises:
        NoRecordingError: nothing is there.
        UnknownNameError: no importer is called `kind`.
        NotADumpError: nobody can read it, or there is nothing in it.
        ExistsError: there is something in `out`.
    """
    head = head_of(path)
    chosen = by_name(IMPORTERS, kind, "kind of dump", "KIND") if kind else _guessed(head)
    directory = new_run_directory(out, force, f"{chosen.name}-{path.resolve().name}")
    recording = Recording(directory, Imported(kind=chosen.name, path=str(path.resolve())))
    try:
        _read(chosen, path, recording)
        return Done(directory=directory, run=recording.close(), tally=recording.tally)
    except BaseException:
        recording.give_up()
        with suppress(OSError):
            remove_recording(directory)
            directory.rmdir()
        raise


def _read(chosen: Importer, path: Path, recording: Recording) -> None:
    try:
        chosen.read(path, recording)
    except OSError as error:
        why = error.strerror or str(error)
        raise NotADumpError("the dump cannot be read", where=error.filename or str(path), why=why) from error
    except MemoryError as error:
        raise NotADumpError("the dump does not fit into memory", where=str(path)) from error
    if not recording.tally.readings and not (recording.is_of_names and recording.tally.steps):
        raise NotADumpError(
            f"there is nothing in this dump (read as {chosen.name})", where=str(path),
            why="; ".join(recording.problems[:3]) or "no step of it holds any value",
            fix="name another kind: " + ", ".join(IMPORTERS.entries()),
        )  # fmt: skip


def head_of(path: Path) -> Head:
    """Return what a reader may look at. Raises NoRecordingError."""
    try:
        if path.is_dir():
            return Head(path=path, is_directory=True, names=tuple(_names(path)))
        with path.open("rb") as file:
            return Head(path=path, is_directory=False, start=file.read(HEAD_BYTES))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise NoRecordingError("there is no dump to import", where=str(path), why=why) from error


def _names(root: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        inside = Path(folder).relative_to(root)
        if len(inside.parts) >= _DEPTH:
            folders.clear()
        folders.sort()
        found += [(inside / name).as_posix() for name in sorted(files)]
        if len(found) >= _MOST_NAMES:
            break
    return found[:_MOST_NAMES]


def _guessed(head: Head) -> Importer:
    if head.is_directory and is_recording(head.path):
        raise NotADumpError(
            "this is a recording of ours already", where=str(head.path), fix=f"hypocenter check {head.path}"
        )
    found = recognised(IMPORTERS, head)
    if found is None:
        fix = "name the folder that holds step*/ (msprobe), or the kind: hypocenter import KIND PATH -o RUN"
        empty = "the folder is empty" if head.is_directory and not head.names else ""
        raise unknown(NotADumpError, "kind of dump", IMPORTERS, where=head.path, fix=fix, empty=empty)
    return found
