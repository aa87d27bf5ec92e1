"""Which kinds of file there are, and the export of a recording to one of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hypocenter.catalogue import Catalogue, about
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.errors import ConfigError, ExistsError, UnknownNameError
from hypocenter.nouns import Diagnosis
from hypocenter.record.reader import RecordedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What is to be exported, and where to.

    Attributes:
        out: the file or folder to make, which is not there yet.
        notes: what the format or the recording does not hold; the writer adds to it.
    """

    recording: RecordedRun
    diagnosis: Diagnosis
    out: Path
    notes: list[str] = field(default_factory=list)


Write = Callable[[Export], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One kind of file. `write` makes `out` and raises only OSError or HypocenterError."""

    name: str
    about: str
    write: Write


EXPORTERS: Catalogue[Exporter] = Catalogue("hypocenter.exporting.kinds", "hypocenter.exporters")


def exporter(name: str) -> Callable[[Write], Write]:
    """Register a function as the writer of this kind; the first line of its docstring says what is made."""
    return EXPORTERS.adding(name, lambda write: Exporter(name=name, about=about(write), write=write))


def export(recording: RecordedRun, kind: str, out: Path, *, force: bool = False) -> Export:
    """Make the files of one kind and return the export, with notes of what they lack.

    Args:
        recording: to be exported.
        kind: name of an exporter.
        out: where to; a file or a folder, as the kind wants it.
        force: replace what is there.

    Raises:
        UnknownNameError: no exporter is called `kind`.
        ExistsError: something is there.
        ConfigError: it cannot be written.
    """
    chosen = EXPORTERS.entries().get(kind)
    if chosen is None:
        known = ", ".join(EXPORTERS.entries())
        raise UnknownNameError(f"nothing exports to {kind!r}", where="--to", fix=f"one of {known}")
    if out.exists() and not force:
        raise ExistsError(
            "the export exists already", where=str(out), why="files are never overwritten silently",
            fix="choose another with -o, or add --force to replace it",
        )  # fmt: skip
    made = Export(recording=recording, diagnosis=diagnose(recording), out=out)
    unfinished = made.out.with_name(f".{out.name}-unfinished")
    try:
        _remove(unfinished)
        out.parent.mkdir(parents=True, exist_ok=True)
        chosen.write(Export(recording=recording, diagnosis=made.diagnosis, out=unfinished, notes=made.notes))
        _remove(out)
        unfinished.replace(out)
    except OSError as error:
        raise ConfigError(
            "the export cannot be written",
            where=str(out),
            why=error.strerror or str(error),
            fix="choose another with -o",
        ) from error
    finally:
        with suppress(OSError):
            _remove(unfinished)
    made.notes.extend(f"the recording is damaged: {problem}" for problem in recording.problems)
    return made


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
