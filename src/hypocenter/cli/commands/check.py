"""`hypocenter check RUN`: diagnose a recording, show the findings, and answer with an exit code."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TextIO, cast

import click

from hypocenter.cli.answer_format import format_option
from hypocenter.cli.on_option import on_option
from hypocenter.cli.waiting import shown_while_waiting
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.errors import HypocenterError
from hypocenter.json_answer import to_json
from hypocenter.nouns import Diagnosis, Severity
from hypocenter.record.layout import DIAGNOSIS_FILE, DUMP_FOLDER
from hypocenter.record.reader import open_run
from hypocenter.record.whole_file import write_whole
from hypocenter.record.whole_run import newest_run
from hypocenter.report import catalogue
from hypocenter.report.closing import closing
from hypocenter.report.formats import terminal
from hypocenter.report.job_steps import of_job
from hypocenter.report.rank_table import grid_of_findings
from hypocenter.report.screen import can_draw, screen_of, write

SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")  # worst first
OK, FINDINGS, CANNOT_TELL = 0, 1, 5  # exit codes, docs/reading.md


@click.command("check")
@click.argument("run", type=click.Path(path_type=Path), required=False)
@format_option(others="sarif, junit")
@click.option(
    "--fail-on", type=click.Choice(SEVERITIES), default="error", show_default=True, help="Exit with 1 from here."
)
@on_option
@click.option("--notes", is_flag=True, help="Show findings of severity note as well.")
def command(run: Path | None, format_name: str, fail_on: str, on: str, notes: bool) -> int:
    """Diagnose RUN: what broke, where, why, and what to change. Without RUN: the newest one below ./runs.

    Writes RUN/diagnosis.json. Exit code: 0 nothing at or above --fail-on, 1 findings, 4 nothing to read, 5 cannot tell.
    """
    started = time.perf_counter()
    if run is None:
        run = newest_run()
        write(sys.stderr, f"checking {run}, the newest run\n")
    _finish_dumps(run, sys.stderr)
    recording = open_run(run, on)
    diagnosis = diagnose(recording)
    seconds = time.perf_counter() - started
    store(recording.directory, diagnosis, sys.stderr)
    if format_name == "terminal":
        grid = grid_of_findings(recording, diagnosis)
        screen = screen_of(sys.stdout)
        text = terminal.render(recording, diagnosis, screen=screen, notes=notes, seconds=seconds, grid=grid)
    else:
        text = catalogue.by_name(format_name).render(recording, diagnosis)
    write(sys.stdout, text)
    return exit_code(diagnosis, cast(Severity, fail_on))


def finish(run_dir: Path, stream: TextIO) -> Diagnosis | None:
    """Diagnose a run that has just ended and tell about it on `stream`: the end of `hypocenter run`.

    Returns:
        The diagnosis; None for a recording that cannot be read, which is told about, never raised.
    """
    try:
        _finish_dumps(run_dir, stream)
        with shown_while_waiting(f"reading {run_dir}", stream):
            recording = open_run(run_dir)
            diagnosis = diagnose(recording)
        store(run_dir, diagnosis, stream)
        records = of_job(recording.step_records())
        grid = grid_of_findings(recording, diagnosis)
        write(stream, closing(recording, diagnosis, records, screen_of(stream), can_draw(stream), grid))
    except HypocenterError as error:
        write(stream, f"{error}\n")
        return None
    return diagnosis


def _finish_dumps(run_dir: Path, talk: TextIO) -> None:
    """Read what a graph of MindSpore had dumped when its program was killed."""
    if not any(run_dir.glob(f"rank-*/{DUMP_FOLDER}")):
        return
    from hypocenter.importing.left_over import read_left_over

    for line in read_left_over(run_dir):
        write(talk, f"note: {line}\n")


def worst(diagnosis: Diagnosis) -> Severity | None:
    """Return the worst severity among the findings; None when there are none."""
    found = {finding.severity for finding in diagnosis.findings}
    return next((severity for severity in SEVERITIES if severity in found), None)


def exit_code(diagnosis: Diagnosis, fail_on: Severity) -> int:
    """Return 1 with a finding at or above `fail_on`, 5 when the run cannot be judged as a whole, else 0."""
    severity = worst(diagnosis)
    if severity is not None and SEVERITIES.index(severity) <= SEVERITIES.index(fail_on):
        return FINDINGS
    return CANNOT_TELL if diagnosis.status == "cannot-tell" or diagnosis.why else OK


def store(run_dir: Path, diagnosis: Diagnosis, talk: TextIO) -> None:
    """Write diagnosis.json, which appears whole; a directory that cannot be written to is only told about."""
    path = run_dir / DIAGNOSIS_FILE
    try:
        write_whole(path, to_json(diagnosis).encode())
    except OSError as error:
        write(talk, f"warning[not-written]: {path} was not written: {error.strerror or error}\n")
