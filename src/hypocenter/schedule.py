"""A schedule is a function step -> bool: `every=100`, `0,5-8,100-120`, `doubling`, `never`."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypocenter.errors import ConfigError

Schedule = Callable[[int], bool]
_DOUBLING_UP_TO, _THEN_EVERY = 512, 1000  # steps


def parse(text: str) -> Schedule:
    """Turn the text into a predicate on step numbers (counted from 0).

    Raises:
        ConfigError: the text is neither `every=N`, a list of steps and ranges, `doubling` (0, 1, 2, 4, 8, …, 512 and
            every 1000th), nor `never`.
    """
    text = text.strip()
    if text in ("never", "on-finding"):
        return lambda _: False
    if text == "doubling":
        return _doubles
    if match := re.fullmatch(r"every=(\d+)", text):
        period = int(match[1])
        if period > 0:
            return lambda step: step % period == 0
    if re.fullmatch(r"\d+(-\d+)?(\s*,\s*\d+(-\d+)?)*", text):
        spans = [tuple(int(end) for end in part.split("-")) for part in text.replace(" ", "").split(",")]
        return lambda step: any(span[0] <= step <= span[-1] for span in spans)
    raise ConfigError(
        f"schedule {text!r} is not understood",
        where="schedule",
        why="a schedule says at which steps to record",
        fix="write every=100, or steps and ranges such as 0,5-8,100-120, or doubling, or never",
    )


def _doubles(step: int) -> bool:
    return step % _THEN_EVERY == 0 or (step <= _DOUBLING_UP_TO and step & (step - 1) == 0)
