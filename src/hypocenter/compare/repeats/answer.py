"""`hypocenter.determinism/1`: whether a program repeats itself bit for bit, and if not, what did not first."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hypocenter import json_answer
from hypocenter.nouns import Confidence, Source

SCHEMA = "hypocenter.determinism/1"
SCHEMA_FILE = Path(__file__).with_name("determinism.schema.json")

Status = Literal["deterministic", "differs", "cannot-tell"]
Cause = Literal[
    "unseeded-generator",  # nobody gave it a seed
    "seed-differs",  # it was given another one each time
    "unordered-accumulation",  # adds in no fixed order: atomics, threads
    "kernel-not-repeatable",  # the same inputs gave other bits, for another reason
    "undefined-memory",  # reads what nobody wrote
    "other-data",  # what came from outside differs
    "changed-outside",  # memory was changed by something that is no operator of torch
    "other-path",  # the program did other things
    "unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One place where the runs part, not because of anything before it."""

    cause: Cause
    confidence: Confidence
    what: str  # in words, without the place
    op: str  # aten.randperm.default, numpy.random.shuffle, ...
    phase: str  # setup, data, forward, loss, backward, grad, optimizer
    step: int
    microbatch: int = 0
    rank: int = 0
    worker: int | None = None  # of a DataLoader
    site: str = ""
    module: str = ""
    param: str = ""  # that it sets up
    generator: str = ""
    source: Source | None = None
    n: int = 1  # events of this line that did not repeat
    why: tuple[str, ...] = ()
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a step ends in: losses, gradients, parameters."""

    n: int = 0
    n_differ: int = 0
    first: str = ""  # "loss of step 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """What `run --deterministic` makes of it."""

    verified: bool  # two runs under it agree
    text: str
    left: Origin | None = None  # what still differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """The whole answer."""

    schema: str = SCHEMA
    status: Status = "cannot-tell"
    sentence: str = ""
    runs: tuple[str, ...] = ()  # recordings that were compared
    n_steps: int = 0
    n_ranks: int = 0
    n_events: int = 0  # operators, draws and results compared
    first: Origin | None = None
    also: tuple[Origin, ...] = ()  # other places that do not repeat, in order
    draws: tuple[Origin, ...] = ()  # every line that drew from a generator without a fixed seed
    results: Results = field(default_factory=Results)
    cure: Cure | None = None
    why: tuple[str, ...] = ()  # why nobody can tell
    notes: tuple[str, ...] = ()


def to_json(found: Determinism) -> str:
    """The answer as indented JSON."""
    return json_answer.to_json(asdict(found))


def published() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) that every answer validates against."""
    return json_answer.published(SCHEMA_FILE)
