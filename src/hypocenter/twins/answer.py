"""`hypocenter.twin/1`: whether a change that must not matter does, and where the two runs part first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import Meta

from hypocenter.compare.comparison import FloorSource
from hypocenter.compare.repeats.answer import Determinism
from hypocenter.nouns import Confidence, Count, Source

Status = Literal["same", "differs", "cannot-tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The first place, in execution order, at which the two runs part."""

    step: Count
    microbatch: Count = 0
    phase: str = ""
    site: Annotated[str, Meta(description="Path of the module, name of the parameter, or of the number.")] = ""
    port: str = ""
    op: Annotated[str, Meta(description="The operator, where operators were compared.")] = ""
    error: Annotated[float | None, Meta(description="Relative; null where bits were compared.")] = None
    floor: Annotated[float, Meta(description="Up to where an error is noise; 0: two runs are equal to the bit.")] = 0.0
    source: Source | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """One kind of state at the first step after a resumption."""

    what: Annotated[str, Meta(description="parameters, optimizer state, batch, learning rate, loss scale, ...")]
    verdict: Annotated[
        Literal["equal", "differs", "missing", "not-seen"],
        Meta(description="missing: only the run that was not interrupted has it; not-seen: neither has."),
    ]
    n: Annotated[int, Meta(ge=0, description="Of how many values.")] = 0
    n_equal: Count = 0
    first: Annotated[str, Meta(description="The first that is not equal.")] = ""
    said: Annotated[str, Meta(description="What is known of how it differs.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedRun:
    """One of the recordings."""

    name: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """Two runs of one program with one thing changed that must not matter."""

    schema: Literal["hypocenter.twin/1"] = "hypocenter.twin/1"
    status: Status = "cannot-tell"
    sentence: Annotated[str, Meta(description="The answer in one sentence.")] = ""
    change: Annotated[str, Meta(description="What was changed: resume, workers, ...")] = ""
    value: Annotated[str, Meta(description="To what, where that can be chosen.")] = ""
    first: Place | None = None
    cause: Annotated[str | None, Meta(description="What it is, in one or two words; null: not known.")] = None
    confidence: Confidence = "possible"
    why: tuple[str, ...] = ()
    means: Annotated[str, Meta(description="What a difference means for this change.")] = ""
    fix: str = ""
    restored: Annotated[
        tuple[Restored, ...], Meta(description="Of `resume`: state by state, what the resumed run begins with.")
    ] = ()
    floor_source: Annotated[
        FloorSource | Literal["bits"], Meta(description="bits: two runs without the change are equal to the bit.")
    ] = "none"
    runs: tuple[NamedRun, ...] = ()
    n_steps: Count = 0
    n_rows: Annotated[int, Meta(ge=0, description="Values that were compared.")] = 0
    repeats: Annotated[
        Determinism | None, Meta(description="Of changes whose runs are compared operator by operator.")
    ] = None
    notes: tuple[str, ...] = ()
    next: Annotated[str, Meta(description="A command that shows more.")] = ""
