"""What recording cost, in words: bytes and per cent."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hypocenter.nouns import StepRecord
from hypocenter.report import wording


def bytes_written(run_dir: Path) -> int:
    """Bytes of all files in the run directory; files that vanish meanwhile count as nothing."""
    total = 0
    for path in run_dir.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:
            continue
    return total


def overhead_percent(records: Sequence[StepRecord]) -> float | None:
    """Time inside Hypocenter per cent of the time of the steps; steps that were replayed are left out if others exist.

    None when no step was timed.
    """
    timed = [record for record in records if record.step_ms > 0]
    healthy = [record for record in timed if not record.finding] or timed
    total_ms = sum(record.step_ms for record in healthy)
    return 100 * sum(record.tap_ms for record in healthy) / total_ms if total_ms > 0 else None


def cost(run_dir: Path, records: Sequence[StepRecord]) -> str:
    """`wrote 1.2 MiB to runs/0412, overhead 1.3 %, and 2.1 s for 1 step that was examined`."""
    text = f"wrote {wording.byte_size(bytes_written(run_dir))} to {wording.clean(str(run_dir))}"
    percent = overhead_percent(records)
    if percent is not None:
        text += f", overhead {percent:.1f} % of the step time"
    examined = [record for record in records if record.finding and record.tap_ms > 0]
    seconds = sum(record.tap_ms for record in examined) / 1e3
    if len(examined) < len(records) and seconds >= 0.05:
        text += f", and {seconds:.1f} s for {wording.count(len(examined), 'step')} that failed"
    return text
