"""A page's command as one machine with two cores can run it: two ranks, free ports, folders that are there."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from ports import free_port

PLACES = {"/scratch/me/runs": "runs", "/path/to/mindspore/bin/python": sys.executable}
PORTS = re.compile(r"\b(?:29500|8765)\b")


def here(text: str) -> str:
    """The text of a page's command or script with other numbers of ranks, ports and places; all else as it stands."""
    text = re.sub(r"(--nnodes 2 --nproc-per-node) \d+", r"\1 1", text)
    text = re.sub(r"\btorchrun --nproc-per-node \d+ (?=\S+\.py|-m )", "torchrun --standalone --nproc-per-node 2 ", text)
    for place, ours in PLACES.items():
        text = text.replace(place, ours)
    return PORTS.sub(lambda found: str(_port(found[0])), text)


@functools.cache
def _port(number: str) -> int:
    """For the same number the same port."""
    return free_port()
