"""What the Hugging Face Trainer prints: a dictionary for each log entry, among whatever else the program says."""

from __future__ import annotations

import re
from pathlib import Path

from hypocenter.compare.curves.catalogue import Head, reader
from hypocenter.compare.curves.collector import Collector, lines, number

_ENTRY = re.compile(r"\{'loss': [^{}]{1,2000}\}")
_BYTES = re.compile(rb"\{'loss': '?[-\d.na][^{}]{0,2000}'epoch': ")
_PART = re.compile(r"'([A-Za-z_]\w{0,60})': '?([^',}]{1,40})'?")


def _accepts(head: Head) -> float:
    return 0.85 if head.is_text and _BYTES.search(head.start) else 0.0


@reader("trainer_console", accepts=_accepts, counts_from=1, means=("loss",))
def read(path: Path, found: Collector) -> None:
    """Entries such as `{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}`; since 5 with texts.

    They carry no step: entries are counted, so both logs must have been made with the same `logging_steps`. The
    `trainer_state.json` of a checkpoint says more, and more exactly.
    """
    n_entries = 0
    for line in lines(path):
        if found.is_full:
            break
        for entry in _ENTRY.finditer(line):  # a progress bar may have put several on one line
            n_entries += 1
            for part in _PART.finditer(entry[0]):
                value = number(part[2].strip())
                if value is not None and part[1] != "epoch":
                    found.add(n_entries, part[1], value)
    if n_entries:
        found.problem("entries carry no step: they are counted as steps (trainer_state.json has the real ones)")
