"""Text logs of Megatron-LM and what descends from it (Megatron-DeepSpeed, NeMo-Megatron, FlagScale, MindSpeed)."""

from __future__ import annotations

import re
from pathlib import Path

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector, lines, number

_LINE = re.compile(r"\biteration\s+(\d{1,15})\s*/\s*\d+\s*\|(.*)")
_BYTES = re.compile(rb"\biteration\s+\d{1,15}\s*/\s*\d+\s*\|")
_VALIDATION = re.compile(
    r"validation loss at (?:the end of training|iteration\s+(\d{1,15}))[^|]*\|\s*(.+?) value:\s*([^|\s]+)"
)
_TIMES = ("elapsed time", "throughput", "tflops", "samples per second", "energy", "power", "tokens")


def _accepts(head: Head) -> float:
    return 0.9 if head.is_text and _BYTES.search(head.start) else 0.0


@reader("megatron", accepts=_accepts, counts_from=1, means=("loss",))
def read(path: Path, found: Collector) -> None:
    """Lines such as ` iteration 10/ 100 | consumed samples: … | learning rate: … | lm loss: … | grad norm: … |`.

    Anything may stand before `iteration` (a date, `[default7]:`, a rank). Fields are taken by their own names, so those
    that came or went with the versions do not matter: until 2020 no `consumed samples`, `number of skipped
    iterations` and `grad norm`; since 2024 `throughput per GPU`; a mixture of experts adds its own losses. Losses are
    means over the log interval, of the iterations that were not skipped; a loss of an interval that had none is not
    printed. Iterations count from 1.
    """
    step = None
    for line in lines(path):
        if found.is_full:
            break
        match = _LINE.search(line)
        if match:
            step = int(match[1])
            for field in match[2].split("|"):
                _add(found, step, field)
        elif "validation loss at" in line and (match := _VALIDATION.search(line)):
            value, at = number(match[3]), int(match[1]) if match[1] else step
            if value is not None and at is not None and match[2].strip() in ("lm loss", "loss"):
                found.add(at, "validation loss", value)


def _add(found: Collector, step: int, field: str) -> None:
    name, colon, text = field.rpartition(":")
    name = name.strip()
    if not colon or name.lower().startswith(_TIMES):
        return
    value = number(text.strip())
    if value is None:
        found.problem(f"{name[:60]!r} of a line is not a number")
    else:
        found.add(step, name, value)
