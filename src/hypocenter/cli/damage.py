"""What of a recording could not be read is said by every command that reads one: what is missing is not nothing."""

from __future__ import annotations

from hypocenter.cli.say import say
from hypocenter.errors import CorruptRecordingError
from hypocenter.record.reader import RecordedRun
from hypocenter.report import wording


def tell_damage(*recordings: RecordedRun) -> None:
    """Say on stderr what is missing, damaged or rolled up in these recordings, a line each."""
    for recording in recordings:
        for problem in (*recording.problems, *recording.rolled_up, *recording.notes):
            say(f"note: {wording.clean(str(recording.directory))}: {wording.sentence(problem)}")


def require_rows(n_rows: int, recording: RecordedRun) -> None:
    """Raise CorruptRecordingError where no row was found, and not all could be read."""
    if n_rows or not recording.problems:
        return
    raise CorruptRecordingError(
        "nothing of this can be read", where=str(recording.directory), why="; ".join(recording.problems),
        fix=f"see what is left: {wording.command('check', str(recording.directory))}",
    )  # fmt: skip
