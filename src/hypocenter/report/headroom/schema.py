"""`hypocenter.headroom/1`: the answer as JSON. Its schema is published beside this file."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from hypocenter import json_answer
from hypocenter.report.headroom import words
from hypocenter.report.headroom.answer import LOST, Answer, Line
from hypocenter.report.headroom.reductions import Reduction
from hypocenter.summary.scale_window import ScaleWindow

SCHEMA = "hypocenter.headroom/1"
SCHEMA_FILE = Path(__file__).with_name("headroom.schema.json")


def to_json(answer: Answer, run: str) -> str:
    """The answer as indented JSON with a final newline; nothing is cut, a number that is not finite is a string."""
    return json_answer.to_json(_envelope(answer, run))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)


def _envelope(answer: Answer, run: str) -> dict[str, Any]:
    form = answer.format
    return {
        "schema": SCHEMA,
        "status": answer.status,
        "run": run,
        "format": {"name": form.name, "max": form.max, "smallest_normal": form.smallest_normal,
                   "smallest_subnormal": form.smallest_subnormal},
        "scale": answer.scale,
        "recorded_scales": list(answer.recorded),
        "level": answer.level,
        "text": words.headline(answer),
        "first": _line(answer.first) if answer.first is not None else None,
        "phases": [
            {"phase": t.phase, "sites": t.n_sites, "overflowing": t.n_overflowing, "unknown": t.n_unknown,
             "headroom_bits": t.worst.bits if t.worst is not None else None, "overflow": t.overflow,
             "zero": t.flushed, "subnormal": t.subnormal}
            for t in answer.phases
        ],
        "sites": [_line(line) for line in answer.lines],
        "window": _window(answer.window, 0.0),
        "window_lost": _window(answer.window_lost, LOST),
        "largest_power": answer.largest_power,
        "lost_there": answer.lost_there,
        "windows": [{"site": site, **(_window(window, 0.0) or {})} for site, window in answer.windows],
        "reductions": [_reduction(r, answer) for r in answer.reductions],
        "notes": list(answer.notes),
    }  # fmt: skip


def _line(line: Line) -> dict[str, Any]:
    return {
        "phase": line.phase,
        "site": line.site,
        "port": line.port,
        "op": line.op or None,
        "line": line.line or None,
        "dtype": line.dtype,
        "known": line.known,
        "scale": line.scale,
        "absmax": line.absmax,
        "step": line.step,
        "headroom_bits": line.bits,
        "headroom_bits_at_most": line.bits if line.bits_at_most is None else line.bits_at_most,
        "overflows": line.overflows,
        "overflow": line.overflow,
        "zero": line.flushed,
        "subnormal": line.subnormal,
        "already_zero": line.zero,
        "elements": line.n,
        "readings": line.n_steps,
        "nonfinite": line.n_nonfinite,
        "still_nonfinite": line.n_still_bad,
        "sampled": line.is_sampled,
        "replay": line.is_replay,
    }


def _window(window: ScaleWindow | None, lost: float) -> dict[str, Any] | None:
    if window is None:
        return None
    return {
        "lost": lost,
        "empty": window.is_empty,
        "above": _float(window.above),
        "below": None if window.below is None else _float(window.below),
        "smallest_power": window.smallest_power,
        "largest_power": window.largest_power,
        "lowest_site": window.lowest_site or None,
        "highest_site": window.highest_site or None,
        "sampled": window.is_sampled,
    }


def _reduction(found: Reduction, answer: Answer) -> dict[str, Any]:
    return {
        "phase": found.phase,
        "site": found.site,
        "op": found.op,
        "line": found.line or None,
        "step": found.step,
        "dtype": found.dtype,
        "of": found.of,
        "present": found.present,
        "critical": found.critical,
        "bound": found.bound,
        "typical": found.typical,
        "never_below": found.never_below,
        "in_accumulator": found.is_in_accumulator,
        "text": found.sentence(answer.format),
    }


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")


__all__: Sequence[str] = ("SCHEMA", "SCHEMA_FILE", "published", "to_json")
