"""A schedule is a function step -> bool: `every=100`, `0,5-8,every=50`, `doubling`, `never`."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypocenter.errors import ConfigError

Schedule = Callable[[int], bool]
_DOUBLING_UP_TO, _THEN_EVERY = 512, 1000  # steps


def parse(text: str) -> Schedule:
    """Turn the text into a predicate on step numbers (counted from 0).

    Raises:
        ConfigError: the text is neither `never` nor made of these, with commas between them: a step, a range of
            steps, `every=N`, `doubling` (0, 1, 2, 4, 8, …, 512 and every 1000th).
    """
    if text.strip() in ("never", "on-finding"):
        return lambda _: False
    parts = [_part(part.strip()) for part in text.split(",")]
    known = [part for part in parts if part is not None]
    if len(known) == len(parts):
        return known[0] if len(known) == 1 else lambda step: any(is_due(step) for is_due in known)
    raise ConfigError(
        f"schedule {text!r} is not understood",
        where="schedule",
        why="a schedule says at which steps to record",
        fix="write every=100, or steps and ranges such as 0,5-8,100-120, or doubling, or several of them, or never",
    )


def _part(text: str) -> Schedule | None:
    """Return the predicate of one part of a schedule; None where the part is not understood."""
    if text == "doubling":
        return _doubles
    if (match := re.fullmatch(r"every=(\d+)", text)) and (period := int(match[1])):
        return lambda step: step % period == 0
    if match := re.fullmatch(r"(\d+)(?:-(\d+))?", text):
        first, last = int(match[1]), int(match[2] or match[1])
        return lambda step: first <= step <= last
    return None


def _doubles(step: int) -> bool:
    return step % _THEN_EVERY == 0 or (step <= _DOUBLING_UP_TO and step & (step - 1) == 0)
