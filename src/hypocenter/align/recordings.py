"""Recordings of a plan: made when first asked for, kept, found again; made elsewhere where the plan says so."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hypocenter.align import fingerprint
from hypocenter.align.alignment import ElsewhereError, ProgramFailedError
from hypocenter.align.children import Start, clean_environment, start
from hypocenter.align.plan import Plan, SideName
from hypocenter.record.layout import is_recording, rank_directories

_TAIL_LINES = 4  # of a failed program's output that are shown
_OURS = ("note:", "= hint:", "recording to ", "sites: hypocenter", "wrote ", "0 errors")  # lines of `hypocenter run`
Tell = Callable[[str], None]


def silent(text: str) -> None:
    """Tell nobody."""


@dataclass(kw_only=True)
class Recordings:
    """Recordings below `folder`, each named for its side, purpose, and all that it depends on.

    A run is written under another name and renamed when it has ended well, so that what was cut off is never taken for
    a recording.
    """

    plan: Plan
    folder: Path
    start: Start = start
    tell: Tell = silent
    used: list[Path] = field(default_factory=list[Path])  # in the order in which they were asked for
    _fingerprints: dict[SideName, str] = field(default_factory=dict[SideName, str])

    def fingerprint(self, side: SideName) -> str:
        """Return digits that change with anything a side's recordings depend on."""
        if side not in self._fingerprints:
            self._fingerprints[side] = fingerprint.of_side(self.plan, side)
        return self._fingerprints[side]

    def get(self, need: Need) -> Path:
        """Return the path of a recording, or of the log that stands for it; make the recording if need be.

        Raises:
            ElsewhereError: it has to be made on another machine.
            ProgramFailedError: the program did not end well.
        """
        found = self._given(need) or self._made(need)
        if found not in self.used:
            self.used.append(found)
        return found

    def _given(self, need: Need) -> Path | None:
        side = self.plan.side(need.side)
        if need.purpose in side.logs:
            return self.plan.folder / side.logs[need.purpose]
        if side.recordings:
            path = self.plan.folder / side.recordings / need.purpose
            if is_recording(path):
                return path
        if side.recordings or not side.command:
            raise self._elsewhere(need)
        return None

    def _elsewhere(self, need: Need) -> ElsewhereError:
        side = self.plan.side(need.side)
        words = ["hypocenter", "run", "--out", need.purpose, *need.options, *(side.argv or ("train.py",))]
        where = self.plan.folder / (side.recordings or "recordings") / need.purpose
        return ElsewhereError(
            f"the {need.side}'s recording '{need.purpose}' is not there", where=os.path.relpath(where),
            why="the plan says that it is recorded elsewhere", fix=shlex.join(words),
        )  # fmt: skip

    def _made(self, need: Need) -> Path:
        name = f"{need.side}-{need.purpose}-{fingerprint.digest_of(self.fingerprint(need.side), need.options)}"
        path = self.folder / name
        if is_recording(path):
            return path
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished, output = self.folder / f"unfinished-{name}", self.folder / f"{name}.txt"
        shutil.rmtree(unfinished, ignore_errors=True)
        words = [*need.options, *self.plan.side(need.side).argv]
        self.tell(f"{need.side} {need.purpose}: hypocenter run {shlex.join(words)}")
        began = time.monotonic()
        code = self._run(
            need.side, [sys.executable, "-m", "hypocenter", "run", "--out", str(unfinished), *words], output
        )
        if code != 0 or not is_recording(unfinished) or not rank_directories(unfinished):
            raise self._failed(need, output, code)
        unfinished.rename(path)
        self.tell(f"   took {time.monotonic() - began:.0f} s")
        return path

    def _run(self, side: SideName, argv: list[str], output: Path) -> int:
        env = clean_environment(os.environ, Path.cwd()) | self.plan.side(side).variables
        cwd = self.plan.start_folder(side)
        if not cwd.is_dir():
            raise ProgramFailedError(f"the {side} cannot be started", where=str(cwd), why="there is no such folder")
        try:
            return self.start(argv, env=env, cwd=cwd, output=output, timeout_s=self.plan.stages.timeout_s)
        except OSError as error:
            raise ProgramFailedError(
                f"the {side} cannot be started", where=str(cwd), why=error.strerror or str(error)
            ) from error

    def _failed(self, need: Need, output: Path, code: int) -> ProgramFailedError:
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines() if output.is_file() else []
        how = f"ended with exit code {code}" if code != 124 else f"took longer than {self.plan.stages.timeout_s} s"
        if code == 0:
            how = "left no recording"
        said = [line for line in lines if line.strip() and not line.lstrip().startswith(_OURS)][-_TAIL_LINES:]
        return ProgramFailedError(
            f"the {need.side} {how} ({need.purpose})", where=str(output), why=" / ".join(said) or "it said nothing",
            fix=f"mend it; what it said is in {os.path.relpath(output)}",
        )  # fmt: skip


IN_FULL = ("--level", "modules", "--sketch", "--param-schedule", "every=1")
UPDATED = 2
"""Steps whose updates are kept as values: the first, and one that has momenta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A recording that a stage asks for."""

    side: SideName
    purpose: str
    options: tuple[str, ...]
    weights: str = ""  # file that the program starts from


def need(
    plan: Plan, side: SideName, purpose: str, *, start_from: str = "", gradients: str = "",
    parameters: Sequence[str] = (),
) -> Need:  # fmt: skip
    """Describe the recording that a side makes for a purpose.

    Args:
        start_from: path of initial weights that are not the program's own.
        gradients: recording whose gradients the optimizer is fed with.
        parameters: ends of the names of parameters, where only these are to be recorded.
    """
    kind = purpose.rstrip("0123456789").rstrip("-")
    options = (*_OPTIONS[kind](plan, side), *_length(plan, kind, purpose))
    options += ("--initial-weights", start_from) if start_from else ()
    options += ("--gradients-from", gradients) if gradients else ()
    if kind in ("updates", "fed"):  # what modules take in and give is far larger than parameters
        options += tuple(word for name in parameters or _ENDINGS for word in ("--site", f"*{name}"))
    return Need(side=side, purpose=purpose, options=options, weights=start_from)


def _exact(plan: Plan) -> tuple[str, ...]:
    """Return the options that make a program do the same each time."""
    return (*(("--deterministic",) if plan.stages.deterministic else ()), *_drawn(plan))


def _drawn(plan: Plan) -> tuple[str, ...]:
    return ("--seed", str(plan.stages.seed), *(() if plan.stages.dropout else ("--no-dropout",)))


def _rate(plan: Plan) -> tuple[str, ...]:
    return () if plan.stages.lr is None else ("--impose-lr", f"{plan.stages.lr:g}")


def _steps(plan: Plan, side: SideName) -> tuple[str, ...]:
    own = ("--calibrate", "every=1", "--save-initial-weights") if side == "baseline" else ()
    return (*IN_FULL, "--save-batches", "1", *own, *_exact(plan), *_rate(plan))


def _again(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*IN_FULL, *_exact(plan), *_rate(plan))


def _loose(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*IN_FULL, *_drawn(plan), *_rate(plan))


def _frozen(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*_exact(plan), "--impose-lr", "0")


def _frozen_repeat(plan: Plan, side: SideName) -> tuple[str, ...]:
    return (*_drawn(plan), "--impose-lr", "0")


def _long(plan: Plan, side: SideName) -> tuple[str, ...]:
    return _drawn(plan)


def _updates(plan: Plan, side: SideName) -> tuple[str, ...]:
    steps = f"0-{UPDATED - 1}"
    return ("--level", "tensors", "--schedule", steps, "--param-schedule", steps, *_exact(plan), *_rate(plan))


_ENDINGS = ("weight", "bias", "gamma", "beta", "embedding_table")  # of names of parameters, where nobody knows better


def _batches(plan: Plan, side: SideName) -> tuple[str, ...]:
    return _drawn(plan)


_OPTIONS = {
    "steps": _steps, "again": _again, "loose": _loose, "fed": _updates, "updates": _updates, "frozen": _frozen,
    "frozen-repeat": _frozen_repeat, "long": _long, "repeat": _long, "batches": _batches,
}  # fmt: skip


def _length(plan: Plan, kind: str, purpose: str) -> tuple[str, ...]:
    stages = plan.stages
    lengths = {
        "frozen": stages.frozen_steps, "frozen-repeat": stages.frozen_steps, "long": stages.long_steps,
        "repeat": stages.long_steps, "updates": UPDATED, "fed": UPDATED,
    }  # fmt: skip
    if kind == "batches":
        last = int(purpose.rpartition("-")[2])
        return ("--save-batches", str(last + 1), "--stop-after-step", str(last))
    return ("--stop-after-step", str(lengths.get(kind, stages.steps) - 1))
