"""Hugging Face Trainer: the `trainer_state.json` of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypocenter.compare.curves.catalogue import Head, NotALogError, reader
from hypocenter.compare.curves.collector import Collector, number, whole

FILE_BYTES = 1 << 30  # read as a whole: a million log entries are about 150 MB
_BESIDE = frozenset(("step", "epoch", "total_flos", "train_runtime", "train_samples_per_second", "train_loss"))


def _accepts(head: Head) -> float:
    if head.is_directory:
        return 0.8 if (head.path / "trainer_state.json").is_file() else 0.0
    start = head.start.lstrip(b"\xef\xbb\xbf \t\r\n")
    is_object = start.startswith(b"{") and b'"log_history"' in head.start
    named = head.path.name == "trainer_state.json" and start.startswith(b"{")
    return 0.95 if is_object or named else 0.0


@reader("trainer_state", accepts=_accepts, counts_from=1, means=("loss",))
def read(path: Path, found: Collector) -> None:
    """`log_history` of trainer_state.json, or of a checkpoint folder that holds one.

    `loss` is the mean over the steps since the entry before (rounded to four decimals before Transformers 5),
    `learning_rate` and `grad_norm` are of the last step; `step` counts updates from 1. The summary at the end of a
    training (`train_loss`) is no step and left out.
    """
    file = path / "trainer_state.json" if path.is_dir() else path
    for entry in _history(file):
        step = whole(entry.get("step"))
        if step is None:
            found.problem("an entry without a step was left out")
            continue
        for name, value in entry.items():
            if name not in _BESIDE and not name.endswith(("_runtime", "_per_second")):
                read_as = number(value)
                if read_as is not None:
                    found.add(step, name, read_as)


def _history(file: Path) -> list[dict[str, Any]]:
    if file.stat().st_size > FILE_BYTES:
        raise NotALogError("the file is too large for a trainer_state.json", where=str(file), why="more than 1 GiB")
    try:
        state = json.loads(file.read_bytes().decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise NotALogError(
            "this trainer_state.json is not whole", where=str(file), why=str(error)[:200] or type(error).__name__,
            fix="take that of the checkpoint before",
        ) from error  # fmt: skip
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        raise NotALogError("there is no log_history in this file", where=str(file))
    return [entry for entry in history if isinstance(entry, dict)]
