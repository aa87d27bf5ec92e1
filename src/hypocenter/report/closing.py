"""What `hypocenter run` says when the program has ended: curves, findings, what it cost, the next command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from hypocenter.nouns import Diagnosis, StepRecord
from hypocenter.report import wording
from hypocenter.report.formats import terminal
from hypocenter.report.job_steps import was_skipped_by_scaler
from hypocenter.report.outline import Recorded
from hypocenter.report.rank_grid import RankGrid
from hypocenter.report.screen import Screen

_VARIABLES = "environment"  # of what was imposed: NAME=VALUE ..., one word each
_NOTABLE_S = 0.05
_N_FIRST = 2  # steps that load code and look at the model for the first time
LONG_MS = 20.0  # of a program's own: a share of shorter steps would alarm, as most of a toy's is what goes on beside it
_LABEL = 11  # columns of the names before the sparklines
BARS, BROKEN = "▁▂▃▄▅▆▇█", "✕"
ASCII_BARS, ASCII_BROKEN = "_.-~=+*#", "x"


def closing(
    recorded: Recorded, diagnosis: Diagnosis, records: Sequence[StepRecord], screen: Screen, has_unicode: bool = True,
    grid: RankGrid | None = None,
) -> str:  # fmt: skip
    """Return the whole text that is printed when a run ends."""
    curves = list(_curves(records, screen.width, ascii_only=not has_unicode))
    head = "".join(f"{line}\n" for line in ["", *curves, ""]) if curves else "\n"
    lines = (*_imposed(recorded.run.imposed), cost(recorded.directory, records))
    return head + terminal.render(recorded, diagnosis, screen=screen, closing=lines, grid=grid)


def _imposed(imposed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line that says what the program was made to do: its numbers are not those of a plain run."""
    words = [text for name, text in imposed.items() if name != _VARIABLES]
    n_variables = len(imposed.get(_VARIABLES, "").split())
    if n_variables:
        words.append(f"{n_variables} environment variable{'s' if n_variables > 1 else ''} (run.json)")
    if words:
        yield f"imposed: {'; '.join(words)}"


def _curves(records: Sequence[StepRecord], width: int, *, ascii_only: bool) -> Iterator[str]:
    norms = [None if was_skipped_by_scaler(r) else r.grad_norm for r in records]
    for name, values in (("loss", [r.loss for r in records]), ("grad norm", norms)):
        known = [value for value in values if value is not None]
        if known:
            room = min(60, width - _LABEL - 24)  # 24: `65504 -> 1.23e-5, 2 ranks`
            drawn = sparkline(values, max(room, 10), ascii_only=ascii_only)
            ends = f"{wording.number(known[0])} -> {wording.number(known[-1])}"
            yield f"{name:<{_LABEL}}{drawn}  {ends}"


def bytes_written(run_dir: Path) -> int:
    """Return the size of all files in the run directory in bytes; files that vanish meanwhile count as nothing."""
    total = 0
    for path in run_dir.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() and not path.is_symlink() else 0
        except OSError:
            continue
    return total


def overhead(records: Sequence[StepRecord]) -> str:
    """Say the `overhead 1.3 ms per step (0.8 %)`; empty when no step was timed, a share only if steps take long.

    Steps that were replayed are left out if others exist, and the first two are told apart if they cost more.
    """
    timed = [record for record in records if record.step_ms > 0]
    healthy = [record for record in timed if not record.finding] or timed
    if not healthy:
        return ""
    first, later = healthy[:_N_FIRST], healthy[_N_FIRST:]
    first_s = sum(record.tap_ms for record in first) / 1e3
    is_apart = bool(later) and first_s >= _NOTABLE_S and _mean(first, "tap_ms") > 2 * _mean(later, "tap_ms")
    step_ms, tap_ms = (_mean(later if is_apart else healthy, name) for name in ("step_ms", "tap_ms"))
    share = f" ({100 * tap_ms / step_ms:.1f} %)" if step_ms - tap_ms > LONG_MS else ""
    begun = f", after {first_s:.1f} s in the first two" if is_apart else ""
    return f"overhead {tap_ms:.{2 if tap_ms < 1 else 1}f} ms per step{share}{begun}"


def _mean(records: Sequence[StepRecord], name: str) -> float:
    return sum(getattr(record, name) for record in records) / len(records)


def cost(run_dir: Path, records: Sequence[StepRecord]) -> str:
    """Say `wrote 1.2 MiB to runs/0412, overhead 1.3 ms per step, and 2.1 s for 1 step that failed`."""
    text = f"wrote {wording.byte_size(bytes_written(run_dir))} to {wording.clean(str(run_dir))}"
    if told := overhead(records):
        text += f", {told}"
    examined = [record for record in records if record.finding and record.tap_ms > 0]
    seconds = sum(record.tap_ms for record in examined) / 1e3
    if len(examined) < len(records) and seconds >= _NOTABLE_S:
        text += f", and {seconds:.1f} s for {wording.count(len(examined), 'step')} that failed"
    return text


def sparkline(values: Sequence[float | None], width: int = 60, *, ascii_only: bool = False) -> str:
    """Draw one character per value, or per span of values when there are more than `width`.

    The height is the last finite value of the span between the smallest and the largest finite value of all; a span
    with a value that is not finite shows a cross, and one without values a space.
    """
    bars, broken = (ASCII_BARS, ASCII_BROKEN) if ascii_only else (BARS, BROKEN)
    finite = [value for value in values if value is not None and math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    n = min(len(values), max(width, 1))
    edges = [round(index * len(values) / n) for index in range(n + 1)] if n else []
    spans = [[v for v in values[a:b] if v is not None] for a, b in pairwise(edges)]
    return "".join(_character(span, low, high, bars, broken) for span in spans)


def _character(span: Sequence[float], low: float, high: float, bars: str, broken: str) -> str:
    if not span:
        return " "
    if not all(map(math.isfinite, span)):
        return broken
    level = (span[-1] - low) / (high - low) if high > low else 0.0
    return bars[min(len(bars) - 1, int(level * len(bars)))]
