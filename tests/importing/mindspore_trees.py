"""Small dumps as MindSpore 2.10.0 wrote them on a CPU, copied to be changed, and runs made of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hypocenter.importing.catalogue import IMPORTERS, import_dump
from hypocenter.nouns import Reading
from hypocenter.record.reader import RecordedRun, open_run

SAMPLES = Path(__file__).parent / "samples" / "mindspore_dump"
TRAINED, OVERFLOWED = (
    SAMPLES / "train_fp32",
    SAMPLES / "fp16_overflow",
)  # an MLP with SGD; inputs of 2000 squared in fp16


def imported(dump: Path, out: Path, kind: str | None = "mindspore-dump") -> RecordedRun:
    """The run of a dump."""
    IMPORTERS.load()
    return open_run(import_dump(dump, str(out), kind=kind).directory)


def copied(dump: Path, to: Path) -> Path:
    """A dump that may be changed."""
    shutil.copytree(dump, to)
    return to


def folder_of(dump: Path) -> Path:
    """The only folder of values."""
    return next(path.parent for path in sorted(dump.rglob("*.npy")))


def file_of(dump: Path, start: str, end: str) -> Path:
    """The only file of a name that begins and ends like this, but for its time."""
    (found,) = [path for path in dump.rglob("*.npy") if path.name.startswith(start) and f".{end}." in path.name]
    return found


def values_of(dump: Path, start: str, end: str) -> NDArray[np.generic]:
    """The values of such a file."""
    return np.load(file_of(dump, start, end), allow_pickle=False)


def reading_of(run: RecordedRun, phase: str, site: str, port: str, step: int = 0, call: int = 0) -> Reading:
    """The only reading of a spot."""
    (found,) = [r for r in run.readings(phase=phase, steps=[step]) if (r.site, r.port, r.call) == (site, port, call)]
    return found
