"""The sink of an import: readings of (rank, step) as a stream in, a run directory of ours out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from hypocenter._version import __version__
from hypocenter.compare.values.recorded import file_stem
from hypocenter.compare.weights.checkpoint import CheckpointError, Tensor
from hypocenter.compare.weights.elements import SAFETENSORS
from hypocenter.compare.weights.writer import write_file
from hypocenter.errors import HypocenterError
from hypocenter.importing.text import writable, writable_reading
from hypocenter.nouns import Attempt, Imported, Place, Reading, Run, StepRecord
from hypocenter.record.facts_file import Facts, write_facts
from hypocenter.record.layout import FORMAT, RUN_FILE, rank_directory, tensors_directory
from hypocenter.record.place_file import write_place
from hypocenter.record.run_file import encode
from hypocenter.record.writer import Writer

ROWS = 4096  # readings handed on at a time
MOST_PROBLEMS = 50  # that are listed; the rest is counted
Held = dict[tuple[int, str], dict[str, Tensor]]
"""By micro-batch and site, by key: where the values lie."""
_FLOATS = frozenset(SAFETENSORS.values())


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of what has come in."""

    readings: int = 0
    tensors: int = 0
    steps: set[int] = field(default_factory=set[int])
    ranks: set[int] = field(default_factory=set[int])


class Recording:
    """Takes what a reader finds, rank by rank and for each rank in order of steps, and writes it as a recording.

    Args:
        directory: an empty run directory.
        imported: what is imported; notes and digest are added by the reader.
    """

    def __init__(self, directory: Path, imported: Imported) -> None:
        self.directory = directory
        self.tally = Tally()
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.world_size = 1
        self.is_of_names = False  # the dump holds names alone: no reading is no mistake
        self._imported = imported
        self._n_problems = 0
        self._writer: Writer | None = None
        self._at: tuple[int, int] = (-1, -1)
        self._waiting: list[Reading] = []
        self._values: Held = {}
        self._started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")

    def problem(self, text: str) -> None:
        """Note something of the dump that is damaged or was left out."""
        self._n_problems += 1
        text = writable(text)
        if len(self.problems) < MOST_PROBLEMS and text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        """Note something that the reader of the recording should know: what is not held, how a thing was taken."""
        text = writable(text)
        if text not in self.notes:
            self.notes.append(text)

    def set_version(self, version: str, *, digest: str = "") -> None:
        """Set the version of the dump's format, and what its digests are."""
        known, version = self._imported, writable(version)
        self._imported = replace(known, version=version or known.version, digest=digest or known.digest)

    def begin(self, rank: int, step: int) -> None:
        """Begin a step of a rank. Raises HypocenterError when the step before could not be written."""
        if self._writer is not None and self._at[0] != rank:
            self._end_rank()
        if self._writer is None:
            self._writer = Writer(self.directory, rank=rank, warn=self.problem)
        self._at = rank, step
        self.tally.ranks.add(rank)
        self.tally.steps.add(step)

    def add(self, reading: Reading) -> None:
        """Add one reading of the current step."""
        self._waiting.append(writable_reading(reading))
        self.tally.readings += 1
        if len(self._waiting) >= ROWS:
            self._flush(None)

    def keep(self, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
        """Keep values of the current step: at its end they are read from their file, part by part, and written."""
        hold(self._values, writable(site), writable(key), microbatch, tensor)

    def end(self, record: StepRecord) -> None:
        """End the current step and write it."""
        held, self._values = self._values, {}
        folder = tensors_directory(self.directory, self._at[0])
        self.tally.tensors += write_values(folder, record.step, held, self.problem)
        self._flush(record)

    def facts(self, rank: int, facts: Facts) -> None:
        """Write what the program of a rank is made of, as far as the dump tells."""
        folder = rank_directory(self.directory, rank)
        folder.mkdir(parents=True, exist_ok=True)
        write_facts(folder, facts)

    def close(self) -> Run:
        """Seal the streams, write rank.json of each rank and run.json."""
        self._end_rank()
        for rank in sorted(self.tally.ranks):
            place = Place(rank=rank, world_size=self.world_size)
            write_place(self.directory, place, Attempt(host="import", started=self._started))
        cut = self._n_problems - len(self.problems)
        warnings = [*self.problems, *([f"{cut:,} more problems of the dump are not listed"] if cut else [])]
        run = Run(
            format=FORMAT, name=self.directory.resolve().name, started=self._started,
            ended=datetime.now(timezone.utc).isoformat(timespec="milliseconds"), status="finished",
            world_size=self.world_size, config={"level": "tensors" if self.tally.tensors else "modules"},
            versions={"hypocenter": __version__}, warnings=tuple(warnings),
            imported=replace(self._imported, notes=tuple(self.notes)),
        )  # fmt: skip
        (self.directory / RUN_FILE).write_bytes(encode(run))
        return run

    def give_up(self) -> None:
        """Close the files as they are."""
        if self._writer is not None:
            self._writer.close(seal=False)

    def _flush(self, record: StepRecord | None) -> None:
        if self._writer is None:
            return
        readings: Sequence[Reading] = self._waiting
        self._writer.write(readings, record)
        self._waiting = []
        if self._writer.broken:
            raise HypocenterError("the run cannot be written", where=str(self.directory), why=self._writer.broken)

    def _end_rank(self) -> None:
        if self._writer is None:
            return
        self._flush(None)
        self._writer.close(seal=True)
        self._writer = None


def hold(held: Held, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
    """Add a tensor, if a recording may have one of its dtype."""
    if tensor.dtype in _FLOATS and not tensor.dtype.startswith("complex"):
        held.setdefault((microbatch, site), {})[key] = tensor


def write_values(folder: Path, step: int, held: Held, problem: Callable[[str], None]) -> int:
    """Write the held values of a step, read part by part from the dump; return how many tensors were written.

    Raises:
        HypocenterError: the files cannot be written.
    """
    n = 0
    for (microbatch, site), values in held.items():
        into = folder / f"step-{step:06d}" / f"mb-{microbatch}"
        n += _write_file(into / f"{file_stem(site)}.safetensors", values, site, problem)
    return n


def _write_file(path: Path, values: Mapping[str, Tensor], site: str, problem: Callable[[str], None]) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(dict(values), path, {"site": site})
        return len(values)
    except CheckpointError as error:  # one of the dump's files has become unreadable
        problem(f"values of {site} are left out: {error.what} ({error.why})")
        path.with_name(f".{path.name}.part").unlink(missing_ok=True)
    except OSError as error:
        raise HypocenterError("the run cannot be written", where=str(path), why=str(error)) from error
    return 0
