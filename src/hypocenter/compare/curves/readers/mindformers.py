"""Text logs of MindFormers (MindSpore Transformers): the lines of its MFLossMonitor."""

from __future__ import annotations

import re
from pathlib import Path

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector, lines, number

_LINE = re.compile(r"Epoch:\s*\[\s*(\d{1,9})/\s*\d{1,9}\],\s*step:\s*\[\s*(\d{1,12})/\s*(\d{1,12})\],?\s*(.*)")
_BYTES = re.compile(rb"Epoch:\s*\[\s*\d{1,9}/\s*\d{1,9}\],\s*step:\s*\[\s*\d{1,12}/")
_LOSS = re.compile(r"(?<![\w])loss:\s*\[?\s*([^\s,/\]]+)")
_PART = re.compile(r"(?<![\w])((?:lm|aux|mtp)_loss|lr|loss_scale|global_norm):\s*(\[[^\]]*\]|[^\s,]+)")
_MONITOR = re.compile(r"^(local_loss|device_local_loss|local_norm|device_local_norm)\b[^:]*:\s*(\S+)")


def _accepts(head: Head) -> float:
    return 0.9 if head.is_text and _BYTES.search(head.start) else 0.0


@reader("mindformers", accepts=_accepts, counts_from=1)
def read(path: Path, found: Collector) -> None:
    """Lines such as `{ Epoch:[ 1/ 2], step:[ 2/ 6500], loss: 10.6, per_step_time: …, lr: …, global_norm: [..]`.

    Versions differ: 2023 `loss:[10.6/10.6], time:5.3 ms, lr:1e-5`; from 2024 `loss: 10.6, per_step_time: 5ms` with data
    sinking and `loss:[this step/mean of the epoch]` without; since late 2024 a `global_norm`; since 2025 `lm_loss`,
    `aux_loss` and `mtp_loss` beside it. Steps count from 1 in each epoch; losses have three decimals. A `global_norm`
    that was printed with a blank in it (`[1 31049]`) cannot be read and is left out.
    """
    for line in lines(path):
        if found.is_full:
            break
        if "Epoch:" not in line or (match := _LINE.search(line)) is None:
            continue
        epoch, step, per_epoch, rest = int(match[1]), int(match[2]), int(match[3]), match[4]
        at = (max(epoch, 1) - 1) * per_epoch + step
        if loss := _LOSS.search(rest):
            _add(found, at, "loss", loss[1])
        elif monitored := _MONITOR.match(rest):
            _add(found, at, monitored[1], monitored[2])
        for part in _PART.finditer(rest):
            _add(found, at, part[1], part[2].strip("[] "))


def _add(found: Collector, step: int, name: str, text: str) -> None:
    value = number(text.rstrip(","))
    if value is None:
        found.problem(f"{name} of a line is not a number")
    else:
        found.add(step, name, value)
