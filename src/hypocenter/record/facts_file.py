"""facts.json of a rank: what the program is made of, as far as it can be read off modules and optimizers.

Beside the readings because it does not change from step to step; comparing two runs looks here first for a reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from hypocenter.nouns import OperatorCall
from hypocenter.record.whole_file import write_whole

FACTS_FILE = "facts.json"
_AT_MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFacts:
    """A parameter or buffer, without its values."""

    shape: tuple[int, ...] = ()
    dtype: str = ""
    trained: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleFacts:
    """One module: its path in the user's names, class, own tensors and what is set on it."""

    path: str
    kind: str = ""  # class name
    where: str = ""  # "file.py:216" of the class's forward
    parameters: dict[str, TensorFacts] = field(default_factory=dict)
    buffers: dict[str, TensorFacts] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)  # numbers, booleans, short texts: eps, p, num_heads, ...
    functions: dict[str, str] = field(
        default_factory=dict
    )  # attributes that are functions: "act": "torch.nn.functional.gelu"
    training: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """One parameter group of an optimizer."""

    options: dict[str, Any] = field(default_factory=dict)  # lr, betas, eps, weight_decay, ...
    parameters: tuple[str, ...] = ()  # names, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """One optimizer at its first update."""

    kind: str = ""  # class name
    groups: tuple[GroupFacts, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the program of a rank is made of: modules, optimizers and calls of operators."""

    format: int = 1
    modules: tuple[ModuleFacts, ...] = ()
    optimizers: tuple[OptimizerFacts, ...] = ()
    settings: dict[str, Any] = field(
        default_factory=dict
    )  # autocast, num_threads, deterministic, tf32, sdpa backends, ...
    calls: tuple[OperatorCall, ...] = ()  # of the first micro-batch whose operators were seen, in order; () of none


def write_facts(folder: Path, facts: Facts) -> None:
    """Write facts.json of a rank's folder, which appears whole. Raises OSError."""
    write_whole(folder / FACTS_FILE, msgspec.json.encode(facts))


def add_calls(folder: Path, calls: Sequence[OperatorCall]) -> bool:
    """Put calls into a rank's facts.json, if it can be written; return False while there is none."""
    facts = read_facts(folder)
    if facts is None:
        return False
    with contextlib.suppress(OSError):  # a full disk: a diff has less to say of causes, and nothing else is lost
        write_facts(folder, replace(facts, calls=tuple(calls)))
    return True


def read_facts(folder: Path) -> Facts | None:
    """Return the facts of a rank; None when there are none, or none that can be read."""
    try:
        with (folder / FACTS_FILE).open("rb") as file:
            return msgspec.json.decode(file.read(_AT_MOST_BYTES), type=Facts)
    except (OSError, ValueError, RecursionError):
        return None
