"""What a recording is for, as the options that it takes: `hypocenter run --for diff` is short for five flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PURPOSES: Mapping[str, Mapping[str, Any]] = {
    # differences between two programs show in the first steps; ten, so that the optimizer's have time to grow
    "diff": {
        "level": "modules", "sketch": True, "schedule": "0-9", "param_schedule": "0-10", "calibrate": "0-9",
    },
}  # fmt: skip
"""Options by purpose. They stand above the environment and the option file, and below what is typed beside them."""


def in_words(purpose: str) -> str:
    """The flags that a purpose stands for, as one would type them."""
    flags = (f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}")
             for name, value in PURPOSES[purpose].items())  # fmt: skip
    return " ".join(flags)
