"""`hypocenter.determinism/1`: whether a program repeats itself bit for bit, and if not, what did not first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal, get_args

from msgspec import Meta

from hypocenter.nouns import Confidence, Count, Source

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
Moment = Literal["setup", "data", "forward", "loss", "backward", "grad", "optimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A place where the runs part, not because of anything before it."""

    cause: Annotated[Cause, Meta(description="What kind of thing it is.")]
    confidence: Annotated[
        Confidence,
        Meta(description="proven: all that it read agreed bit for bit, or the generator's own state differed."),
    ]
    what: Annotated[str, Meta(description="In words, without the place.")]
    op: Annotated[str, Meta(description="aten.randperm.default, numpy.random.shuffle, torch.manual_seed, ...")]
    phase: Annotated[
        str,
        Meta(
            description="setup: before the first step; grad: between backward and update.",
            extra_json_schema={"enum": get_args(Moment)},
        ),
    ]
    step: Count
    microbatch: Count = 0
    rank: Count = 0
    worker: Annotated[int | None, Meta(description="Number of the DataLoader's worker that did it.")] = None
    site: Annotated[str, Meta(description="Path of the module.")] = ""
    module: Annotated[str, Meta(description="Its class.")] = ""
    param: Annotated[str, Meta(description="The parameter that it sets up, before the first step.")] = ""
    generator: Annotated[
        str, Meta(description="That it drew from or seeded: torch cpu, torch.Generator, random, numpy.random, ...")
    ] = ""
    source: Source | None = None
    n: Annotated[
        int,
        Meta(
            ge=1,
            description="Events of this line that did not repeat; draws of Python and NumPy are noted 16 times, "
            "then at each power of two.",
        ),
    ] = 1
    why: tuple[str, ...] = ()
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """What a step ends in: losses, gradients, parameters."""

    n: Count = 0
    n_differ: Count = 0
    first: Annotated[str, Meta(description="Such as: loss of step 0.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cure:
    """What `run --deterministic` makes of it."""

    verified: Annotated[bool, Meta(description="Two runs under it agree.")]
    text: str
    left: Annotated[Origin | None, Meta(description="What still differs.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Determinism:
    """Whether a program repeats itself bit for bit, and if not, what did not first."""

    schema: Literal["hypocenter.determinism/1"] = "hypocenter.determinism/1"
    status: Annotated[
        Status,
        Meta(description="deterministic: all losses, gradients and parameters agree in the steps that were compared."),
    ] = "cannot-tell"
    sentence: Annotated[str, Meta(description="The answer in one sentence.")] = ""
    runs: Annotated[
        tuple[str, ...], Meta(description="Recordings that were compared; the first with each other one.")
    ] = ()
    n_steps: Count = 0
    n_ranks: Count = 0
    n_events: Annotated[int, Meta(ge=0, description="Operators, draws and results that were compared.")] = 0
    first: Origin | None = None
    also: Annotated[
        tuple[Origin, ...],
        Meta(description="Other places that do not repeat, in order; those in `draws` are not named again."),
    ] = ()
    draws: Annotated[
        tuple[Origin, ...], Meta(description="Every line that drew from a generator without a fixed seed.")
    ] = ()
    results: Annotated[Results, Meta(description="Losses, gradients and parameters of all steps.")] = field(
        default_factory=Results
    )
    cure: Annotated[
        Cure | None,
        Meta(description="What run --deterministic makes of it; null unless --cure was given and the runs differ."),
    ] = None
    why: Annotated[tuple[str, ...], Meta(description="Why nobody can tell.")] = ()
    notes: tuple[str, ...] = ()
