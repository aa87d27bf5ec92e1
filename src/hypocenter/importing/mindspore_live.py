"""A dump that MindSpore writes while a program is recorded: read step by step, and deleted as soon as it was read.

Each call of a graph has a number of its own, from 1 on, as "iteration"; `calls.txt` tells of each the step. So the
dump of a program that was killed can still be read (`left_over`).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from hypocenter import schedule
from hypocenter.compare.rows import GRAPH
from hypocenter.compare.weights.checkpoint import Tensor
from hypocenter.config import Config
from hypocenter.diagnose.evidence import Evidence
from hypocenter.importing.mindspore_evidence import evidence_of
from hypocenter.importing.mindspore_items import Execution
from hypocenter.importing.mindspore_rank import Rank
from hypocenter.importing.mindspore_step import Step
from hypocenter.importing.mindspore_tree import Folder, folders_of
from hypocenter.importing.recording import Held, hold, write_values
from hypocenter.nouns import LEVELS, Reading, StepRecord, Summary, replace
from hypocenter.record.facts_file import Facts
from hypocenter.record.layout import tensors_directory

CALLS = "calls.txt"  # in it: number of a call and its step, a line each
MOST_CALLS = 2_000_000_000  # numbers of calls; MindSpore counts with 32 bits
_NEVER_CALLED = ("CellList", "CellDict")  # hold cells: Python calls those, not them
_OPS = LEVELS.index("ops")


class LiveRows:
    """Takes what is read of a step, and keeps the rows that were asked for.

    At level modules rows of single operators are kept only of steps in which a result is not finite: they tell where
    it began.
    """

    def __init__(self, config: Config, directory: Path, rank: int) -> None:
        self.rows: list[Reading] = []
        self.record: StepRecord | None = None
        self.notes: list[str] = []
        self.problems: list[str] = []
        self.told: Facts | None = None
        self._config, self._tensors = config, tensors_directory(directory, rank)
        self._has_params = schedule.parse(config.param_schedule)
        self._found: list[Reading] = []
        self._held: Held = {}

    def problem(self, text: str) -> None:
        """Note something of the dump that is damaged or was left out."""
        if text not in self.problems:
            self.problems.append(text)

    def note(self, text: str) -> None:
        """Note something that the reader of the recording should know."""
        if text not in self.notes:
            self.notes.append(text)

    def set_version(self, version: str, *, digest: str = "") -> None:
        """Do nothing: the program itself tells its versions."""

    def begin(self, rank: int, step: int) -> None:
        """Begin a step: what follows belongs to it."""
        self._found, self._held, self.rows, self.record = [], {}, [], None

    def add(self, reading: Reading) -> None:
        """Add one reading of the step, without its digest: that is a checksum of a file, which no other tap makes."""
        self._found.append(replace(reading, digest=None))

    def keep(self, site: str, key: str, microbatch: int, tensor: Tensor) -> None:
        """Keep values of the current step, if level and site are wanted."""
        if self._config.level == "tensors" and self._is_wanted(site):
            hold(self._held, site, key, microbatch, tensor)

    def end(self, record: StepRecord) -> None:
        """End the current step: `rows` and `record` are then there, and its values are written."""
        is_bad = any(r.summary.n_nonfinite and is_result(r) for r in self._found)
        has_ops = is_bad or LEVELS.index(self._config.level) >= _OPS
        kept = [r for r in self._found if is_bad or self._is_kept(r, has_ops=has_ops)]
        is_full = is_bad or self._has_params(record.step)
        self.rows = [r if is_full or r.phase != "grad" else norm_alone(r) for r in kept]
        self.record = record
        write_values(self._tensors, record.step, self._held, self.problem)
        self._found, self._held = [], {}

    def facts(self, rank: int, facts: Facts) -> None:
        """Keep what the program is made of, as far as graphs tell."""
        self.told = facts

    def _is_kept(self, reading: Reading, *, has_ops: bool) -> bool:
        if reading.phase == "loss" and reading.port == "value":
            return True
        if reading.module in _NEVER_CALLED and not reading.op:
            return False
        if not has_ops and (is_of_operator(reading) or reading.site.startswith("constants.")):
            return False
        if (reading.port == "value" and reading.phase == "param") or is_state(reading):
            return self._has_params(reading.step) and self._is_wanted(reading.site)
        return self._is_wanted(reading.site)

    def _is_wanted(self, site: str) -> bool:
        """Return whether the globs want a site; an operator is wanted with its cell."""
        names = [site, site.rpartition(".")[0]]
        sites, exclude = self._config.sites, self._config.exclude
        matches = not sites or any(fnmatchcase(name, glob) for name in names for glob in sites)
        return matches and not any(fnmatchcase(name, glob) for name in names for glob in exclude)


def norm_alone(reading: Reading) -> Reading:
    """Return a gradient with its norm alone, for steps at which parameters are not due (as at level sentinel)."""
    s = reading.summary
    is_bad = s.n_nonfinite > 0
    return replace(reading, summary=Summary(n=s.n, n_nan=int(is_bad), sumsq=0.0 if is_bad else s.sumsq))


def is_of_operator(reading: Reading) -> bool:
    """Return whether a row is of a single operator."""
    return reading.op.startswith(GRAPH) or (reading.phase == "optimizer" and bool(reading.module))


def is_state(reading: Reading) -> bool:
    """Return whether a row is of what an optimizer keeps of a parameter."""
    return reading.phase == "optimizer" and not reading.module


def is_result(reading: Reading) -> bool:
    """Return whether the row is a result (loss, gradient, output, state), where not finite is no mask."""
    if reading.literal_inf or is_of_operator(reading):
        return False
    return reading.phase in ("loss", "grad", "param", "optimizer") or reading.port.startswith("out")


class LiveDump:
    """Reads steps of a dump that is being written.

    Args:
        folder: what MindSpore dumps into.
        rank: its number.
        into: takes the rows.
        sketch: whether values are sketched.
    """

    def __init__(self, folder: Path, rank: int, into: LiveRows, *, sketch: bool) -> None:
        self.folder, self.into = folder, into
        self.n_files = self.n_bytes = 0  # the most of one step
        self.evidence: Evidence | None = None  # of the step that was read last, where it failed
        self._rank = Rank(rank=rank, into=into, sketch=sketch, after=self._after)
        self._known: set[int] = set()  # graphs whose constants were read
        self._done: list[Folder] = []
        self._last = -2

    def read(self, step: int, calls: Sequence[int]) -> bool:
        """Read the rows of one step into `into`; return False when nothing of it was dumped.

        Args:
            step: its number.
            calls: numbers of the calls of graphs that belong to it.
        """
        wanted = set(calls)
        every = folders_of(self.folder)
        folders = [folder for folder in every if not folder.is_constants and folder.step in wanted]
        if not folders:
            return False
        if step != self._last + 1:
            self._rank.forget()
        self._last, self.evidence = step, None
        self._rank.look(folders)
        new = {folder.graph for folder in folders} - self._known
        self._rank.step(step, batches_of(folders), [f for f in every if f.is_constants and f.graph in new])
        self._known |= new
        sizes = [file.stat().st_size for folder in folders for file in folder.path.iterdir()]
        self.n_files, self.n_bytes = max(self.n_files, len(sizes)), max(self.n_bytes, sum(sizes))
        self._delete()  # of the step before: the next one may begin with what its update left
        self._done = folders
        return True

    def _after(self, step: Step, runs: list[Execution]) -> None:
        """Look into the first micro-batch that failed."""
        if self.evidence is None:
            self.evidence = evidence_of(step, runs, rank=self._rank.rank)

    def end(self) -> None:
        """Tell the facts and delete everything: no step is left."""
        self._rank.forget()
        self._rank.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _delete(self) -> None:
        for folder in self._done:
            shutil.rmtree(folder.path, ignore_errors=True)
        self._done = []


def batches_of(folders: Iterable[Folder]) -> list[list[Folder]]:
    """Group folders of one step by micro-batch: the next begins where a graph runs again; the last has the update."""
    found: list[list[Folder]] = [[]]
    for folder in sorted(folders, key=lambda f: (f.step, f.graph)):
        if any(folder.graph == other.graph for other in found[-1]):
            found.append([])
        found[-1].append(folder)
    return found


def note_call(folder: Path, number: int, step: int) -> None:
    """Write down which step a call belongs to."""
    with suppress(OSError), (folder / CALLS).open("a", encoding="ascii") as file:
        file.write(f"{number} {step}\n")


def noted_calls(folder: Path) -> dict[int, list[int]]:
    """Read the numbers of calls by step, as they were written down; a line that is cut short is left out."""
    found: dict[int, list[int]] = {}
    try:
        lines = (folder / CALLS).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.split()
        if len(words) == 2 and all(word.isdigit() and len(word) <= 15 for word in words):
            found.setdefault(int(words[1]), []).append(int(words[0]))
    return found
