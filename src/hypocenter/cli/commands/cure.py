"""`hypocenter cure RUN`: the smallest float32 island that makes the failed step finite, verified by replay."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click
import msgspec

from hypocenter.align.children import clean_environment, end
from hypocenter.cli.answer_format import format_option, show_answer
from hypocenter.cli.damage import tell_damage
from hypocenter.cli.say import say
from hypocenter.diagnose import cure
from hypocenter.diagnose.judged_evidence import JudgedEvidence, decode, load
from hypocenter.errors import BundleError, HypocenterError, NoRecordingError
from hypocenter.nouns import Run
from hypocenter.record.layout import EVIDENCE_FILE
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.whole_file import write_whole
from hypocenter.report.cure import render

EXIT_CODES = {"cured": 0, "no-cure": 1, "cannot-tell": 5}
_NEEDS_FRAMEWORK = "that needs torch, or MindSpore, and this Python has neither"
POLL_S = 0.5  # between two looks for the evidence
_NO_FORMAT_MENDS = {
    "spike": "the step jumped and stayed finite, which no other format mends",
    "crash": "the step was ended by an error, which no other format mends",
}


@click.command("cure")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN|BUNDLE")
@click.option("--again", is_flag=True, help="Run the recorded program again and search without a budget.")
@click.option(
    "--rerun/--no-rerun", default=True, show_default=True, help="Run it again when the recording has no cure."
)
@format_option()
def command(run: Path, again: bool, rerun: bool, format_name: str) -> int:
    """Find the least that has to run in float32 for the failed step of RUN to be finite.

    The search was done by replay when the step failed. If it was not, or did not end, the recorded program is run
    again up to that step. Exit code: 0 cured, 1 no cure, 4 nothing to read, 5 cannot tell.
    """
    recording, piece = _opened(run)
    hopeless = _NO_FORMAT_MENDS.get(piece.evidence.trigger) if piece else None
    why: tuple[str, ...] = (hopeless,) if hopeless else ()
    could_tell = not hopeless and cure.needs_search(piece)
    wants_rerun = rerun and could_tell and recording is not None and bool(recording.run.command)
    if again or (wants_rerun and has_framework()):
        if recording is None:
            raise BundleError(
                "this bundle is not in a recording", where=str(run), why="what was run is not known", fix="give RUN"
            )
        piece, why = _searched_again(recording, piece)
    elif could_tell:
        why = ("the program was not run again" if not rerun else "the recording does not say what was run",)
        why = (f"the program was not run again: {_NEEDS_FRAMEWORK}",) if wants_rerun else why
    name = recording.run.name if recording is not None else run.resolve().name
    found = cure.answer(name, piece, why)
    show_answer("cure", found, format_name, render)
    tell_damage(*([recording] if recording is not None else []))
    return EXIT_CODES[found.status]


def _opened(path: Path) -> tuple[RecordedRun | None, JudgedEvidence | None]:
    """Return the recording and its failure to cure; a bundle outside a recording has only the second.

    Raises:
        NoRecordingError: there is nothing to read.
        BundleError: the evidence of the bundle cannot be used.
    """
    if not (path / EVIDENCE_FILE).is_file():
        recording = open_run(path)
        return recording, cure.chosen(load(recording.evidence_files(), recording.directory).found)
    run = path.resolve().parents[2]
    with contextlib.suppress(Exception):
        recording = open_run(run)
        files = [(rank, file) for rank, file in recording.evidence_files() if file.parent.samefile(path)]
        if files:
            return recording, cure.chosen(_loaded(files, recording.directory))
    return None, cure.chosen(_loaded([(0, path / EVIDENCE_FILE)], path.parent))


def _loaded(files: list[tuple[int, Path]], run: Path) -> tuple[JudgedEvidence, ...]:
    pieces = load(files, run)
    if not pieces.found:
        raise BundleError("the bundle cannot be read", where=str(files[0][1]), why="; ".join(pieces.notes))
    return pieces.found


def _searched_again(
    recording: RecordedRun, before: JudgedEvidence | None
) -> tuple[JudgedEvidence | None, tuple[str, ...]]:
    """Search in a new run; return the failure with what was found (stored if it is the same), and notes."""
    after = cure.chosen(evidence_of_rerun(recording.run))
    if after is None:
        return before, ("the program was run again, and no step failed",)
    if before is None:
        return replace(after, finding=replace(after.finding, bundle=None)), ()
    if (after.finding.site, after.finding.op) != (before.finding.site, before.finding.op):
        place = f"step {after.finding.step} in {after.finding.site or 'the model'}"
        return replace(after, finding=replace(after.finding, bundle=None)), (f"run again, it failed at {place}",)
    if before.finding.step != after.finding.step:
        why = (f"run again, it failed at step {after.finding.step} instead of {before.finding.step}",)
    else:
        why = ()
    evidence = replace(before.evidence, cure=after.evidence.cure, remedies=after.evidence.remedies)
    _store(recording, before, evidence)
    remedy = after.finding.remedy
    return replace(before, evidence=evidence, finding=replace(before.finding, remedy=remedy)), why


def _store(recording: RecordedRun, piece: JudgedEvidence, evidence: object) -> None:
    """Write the evidence, which appears whole; a directory that cannot be written to is only told about."""
    path = recording.directory / (piece.finding.bundle or "") / EVIDENCE_FILE
    try:
        write_whole(path, msgspec.json.encode(evidence))
    except OSError as error:
        say(f"warning[not-written]: {path} was not written: {error.strerror or error}")


class RerunError(HypocenterError):
    """The recorded program cannot be run again."""

    slug = "cannot-rerun"


def evidence_of_rerun(run: Run) -> tuple[JudgedEvidence, ...]:
    """Run the program again, with a full search at its first failure, then end it. Its output goes to stderr.

    Raises:
        RerunError: the recording does not say what was run, or the folder is gone.
    """
    folder = _checked(run)
    with tempfile.TemporaryDirectory(prefix="hypocenter-cure-") as scratch:
        out = Path(scratch) / "run"
        words = [
            sys.executable,
            "-m",
            "hypocenter",
            "run",
            "--out",
            str(out),
            "--cure",
            "full",
            *_level(run),
            *run.command,
        ]
        say(f"running again until the step that failed: {shlex.join(run.command)}  (in {folder})")
        child = subprocess.Popen(
            words, cwd=folder, stdout=2, start_new_session=True, env=clean_environment(os.environ, Path.cwd())
        )
        try:
            while child.poll() is None and not _is_searched(out):
                time.sleep(POLL_S)
        finally:
            end(child)
        try:
            recording = open_run(out)
        except NoRecordingError:
            return ()
        return load(recording.evidence_files(), out).found


def _checked(run: Run) -> Path:
    folder = Path(run.folder) if run.folder else Path.cwd()
    if not run.command:
        raise RerunError(
            "the recording does not say what was run",
            where=run.name,
            fix="record again with hypocenter run --cure full PROGRAM",
        )
    if not has_framework():
        raise RerunError(
            "the program cannot be run again here",
            where=sys.executable,
            why=_NEEDS_FRAMEWORK,
            fix="use the Python that it was recorded with: PYTHON -m hypocenter cure RUN --again",
        )
    if not folder.is_dir():
        raise RerunError(
            "the program cannot be run again here",
            where=str(folder),
            why="the folder it was started in does not exist on this machine",
            fix="run this command where the program was recorded",
        )
    return folder


def has_framework() -> bool:
    """Return whether this Python could run a training program again; nothing is imported."""
    return any(find_spec(name) is not None for name in ("torch", "mindspore"))


def _level(run: Run) -> Sequence[str]:
    level = run.config.get("level")
    return ("--level", level) if level in ("sentinel", "modules") else ()


def _is_searched(out: Path) -> bool:
    for path in out.glob(f"rank-*/bundles/*/{EVIDENCE_FILE}"):
        with contextlib.suppress(OSError, ValueError):  # half written
            if decode(path.read_bytes()).cure is not None:
                return True
    return False
