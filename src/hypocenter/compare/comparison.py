"""The vocabulary of comparing two runs, as frozen dataclasses: what crosses a folder boundary is made of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from hypocenter.nouns import Confidence, Phase, Source

Verdict = Literal["same", "diverged", "cannot-tell"]
Depth = Literal["summary", "sketch", "tensor"]
RowVerdict = Literal["equal", "within-noise", "differs", "cannot-tell"]
Side = Literal["baseline", "candidate"]
LayoutKind = Literal["identity", "transposed", "padded", "concatenated", "interleaved", "swapped", "reshaped", "copies"]
FloorSource = Literal["repeats", "calibration", "rounding", "assumed", "none"]
STAGES: tuple[Phase, ...] = ("data", "param", "optimizer", "forward", "loss", "backward", "comm", "grad", "scaler")
"""Phases of one step in the order in which a difference travels. Parameters and optimizer state are those that the step
starts from: what its update makes of them is in the rows of the next step."""
_STAGE_OF_PHASE = {phase: rank for rank, phase in enumerate(STAGES)}
_AT_THE_END = ("lr", "clip_coef")  # scalars of the update: they act after the gradients, on the next step's parameters
END_OF_STEP = len(STAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """A place where values are observed in one run: what a reading's phase, site and port say, without step."""

    phase: Phase
    site: str
    port: str
    call: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCard:
    """What a matcher may know of a spot: everything from the first step that recorded it."""

    spot: Spot
    order: int  # rank in execution order among the spots of its run, from 0
    module: str = ""  # class of the module
    dtype: str = ""
    shape: tuple[int, ...] = ()  # of the logical tensor
    names: tuple[str, ...] = ()  # all names of a shared module or parameter
    n: int = 0
    sumsq: float = 0.0
    absmax: float = 0.0
    hist_first: int = 0
    hist: tuple[int, ...] = ()
    sketch: tuple[float, ...] | None = None
    digest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the tensor of a pair lies on one side against the other.

    kind:
        identity      the same tensor
        transposed    a matrix against its transpose
        padded        one side has more rows or columns at the end of `dim`: `sizes[0]` is what both have
        concatenated  the parts of the other side, one after another along `dim` (gate and up)
        interleaved   as concatenated, but group by group: `groups` times (parts[0]/groups, parts[1]/groups, ...) (QKV
                      by query group); `groups` 0: how many is not known, only what no order changes can be compared
        swapped       the first two dimensions change places: (sequence, batch, ...) against (batch, sequence, ...)
        reshaped      the same elements in the same row-major order, in another shape: (batch * sequence, hidden)
        copies        each part of the one side is by itself the same value as the other side (what q, k and v take in)

    `dim` counts from 0 in the whole (fused) tensor, `swapped` taken back. One against one and concatenated or
    interleaved: fused on both sides, and so in the candidate; the other way in the baseline; `sizes` is not known.
    """

    kind: LayoutKind = "identity"
    dim: int = 0
    sizes: tuple[int, ...] = ()  # of the parts along dim
    swapped: bool = False  # the first two dimensions change places too: true with kind "swapped", may be with others
    groups: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Spots that are the same value in both runs. One against one, or the parts of a fused one in order.

    No spot is in two pairs.
    """

    baseline: tuple[Spot, ...]
    candidate: tuple[Spot, ...]
    by: str  # name of the matcher: manual, exact, renamed, structure, value
    layout: Layout = field(default_factory=Layout)
    why: str = ""  # what the matcher went by: "rule hf-megatron: self_attn.q_proj -> self_attention.linear_qkv"
    certainty: float = 1.0  # 0..1; below 1 for structure and value


@dataclass(frozen=True, slots=True, kw_only=True)
class Matching:
    """All spots of two runs: paired, or left over. Nothing matched is never "equal"."""

    pairs: tuple[Pair, ...] = ()
    unmatched_baseline: tuple[SiteCard, ...] = ()
    unmatched_candidate: tuple[SiteCard, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """How far two good runs are apart at one spot."""

    relative: float  # of the L2 norm, or of the scalar
    source: FloorSource = "none"
    n_samples: int = 0  # repeats or perturbed replays it was measured on


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """How far baseline and candidate are apart in one row, by what both hold."""

    depth: Depth
    relative: float  # ‖candidate - baseline‖ / ‖baseline‖; at depth summary: a lower bound, from norms and extremes
    low: float = 0.0  # interval of the estimate: of a sketch its own error bar, of tensors twice the value itself
    high: float = 0.0
    cosine: float | None = None
    scale: float | None = None  # ⟨candidate, baseline⟩ / ⟨baseline, baseline⟩
    details: dict[str, float] = field(default_factory=dict)  # depth tensor: max_abs, max_rel, ulp_p50, ulp_max, ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RowComparison:
    """How far the sides of one pair are apart at one step and micro-batch."""

    pair: Pair
    step: int
    microbatch: int
    order: int  # in the baseline's execution order, over the whole step
    distance: Distance | None  # None: nothing that both sides hold can be compared
    floor: Floor
    verdict: RowVerdict
    since: int | None = None  # the first step in which the pair differs, where this is its worst row
    dtypes: tuple[str, str] = ("", "")
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first place, in execution order, whose inputs agree and whose output does not."""

    step: int
    microbatch: int
    phase: Phase
    site: str  # in the baseline's names; of code between modules, the module whose own code it is
    port: str
    candidate_site: str
    error: float  # relative
    floor: float
    source: Source | None = None
    between: tuple[str, str] | None = None  # last output that agrees, first input that does not: code between modules
    inputs_agree: bool | None = None  # None: inputs were not recorded
    row: RowComparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """A hypothesis about a difference, and how much of it it explains."""

    name: str  # "norm-eps", "scale-factor", ...: the file in compare/fits
    cause: str  # of the closed vocabulary: config-mismatch, precision-mismatch, ...
    explained: float  # 0..1: 1 - ‖residual‖² / ‖difference‖², or 1 for what is a fact (an attribute that differs)
    confidence: Confidence
    text: str  # one line: "eps is 1e-05 in the baseline and 1e-03 in the candidate"
    values: dict[str, Any] = field(default_factory=dict)
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amplification:
    """By how much a module makes a relative error grow: output's over input's."""

    site: str
    phase: Phase
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The answer of `hypocenter diff`. Serialised as `hypocenter.comparison/1`."""

    schema: str = "hypocenter.comparison/1"
    baseline: str = ""
    candidate: str = ""
    status: Verdict = "cannot-tell"
    sentence: str = ""
    first: Divergence | None = None
    cause: str | None = None  # of the closed vocabulary
    fit: Fit | None = None  # the best accepted one
    confidence: Confidence = "possible"
    why: tuple[str, ...] = ()
    rows: tuple[RowComparison, ...] = ()  # the worst row of each pair, in execution order
    matching: Matching = field(default_factory=Matching)
    amplifications: tuple[Amplification, ...] = ()
    floor_source: FloorSource = "none"
    budget: float = 1.0  # up to budget × floor an error is noise
    n_noisy: int = 0  # rows that are not equal to the bit: among so many the worst was looked for
    n_samples: int = 0  # of noise, in most floors
    depth: Depth | None = None  # the deepest that was used
    n_steps: int = 0
    n_rows: int = 0
    n_differ: int = 0
    notes: tuple[str, ...] = ()


def stages_of(spots: Iterable[Spot]) -> list[int]:
    """Return the stage of each spot, as `stage_of` tells it."""
    return [stage_of(spot) for spot in spots]


def stage_of(spot: Spot) -> int:
    """Return the stage of a step in which the spot is computed; rows of one stage are sorted by their `order`."""
    if spot.phase == "optimizer" and is_of_update(spot.site):
        return END_OF_STEP
    if is_given_to_loss(spot):
        return _STAGE_OF_PHASE["loss"]
    if spot.phase == "comm":
        return _STAGE_OF_PHASE["backward"]
    return _STAGE_OF_PHASE.get(spot.phase, END_OF_STEP)


def is_given_to_loss(spot: Spot) -> bool:
    """Return whether the loss is computed from it beside the model's output: labels, weights."""
    return spot.phase == "data" and spot.site.startswith("batch.loss")


def are_exact(spots: Iterable[Spot]) -> list[bool]:
    """Return which spots hold what a program is given (a batch, a learning rate) and which therefore has no noise."""
    return [
        spot.phase == "data"
        or (spot.phase == "forward" and spot.site == "" and spot.port.startswith("in"))
        or (spot.phase == "optimizer" and spot.site != "clip_coef" and is_of_update(spot.site))
        for spot in spots
    ]


def is_of_update(site: str) -> bool:
    """Return whether the site is a number that the update uses, such as the learning rate."""
    return site in _AT_THE_END or site.startswith("lr.")
