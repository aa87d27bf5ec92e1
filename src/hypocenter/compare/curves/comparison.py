"""The answer about two curves, as frozen dataclasses. Serialised as `hypocenter.curves/1`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hypocenter.nouns import Confidence, Count

CurveVerdict = Literal["accepted", "departed", "cannot-tell"]
CheckStatus = Literal["pass", "fail", "cannot-tell", "skipped"]
NoiseSource = Literal["repeats", "within-curve", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What counts as a difference. The absolute numbers are those that porting teams accept language models by.

    Sources: the precision-tuning guide of MindFormers ("loss difference about 0.001 and global norm about 0.05 over
    1,000 steps at learning rate 0; over 10,000 steps it swings around zero and stays below 0.03; below 1 % at the end:
    evaluate downstream"). The probabilities are ours: see docs/curves.md for what they cost and buy.
    """

    loss: float = 0.03  # nats; of a step's difference, when weights are updated
    frozen_loss: float = 0.001  # nats; at learning rate 0
    frozen_grad_norm: float = 0.05  # at learning rate 0
    end_share: float = 0.01  # of the loss, mean of the last tenth; below: evaluate downstream
    long_steps: int = 10_000  # steps over which `loss` is meant to hold
    frozen_steps: int = 1_000  # steps over which the limits at learning rate 0 are meant to hold
    lr_share: float = 2e-3  # relative; logs print learning rates with three digits or more
    grad_norm_share: float = 0.1  # relative, of a sustained difference of grad norms
    spike: float = 8.0  # robust standard deviations above the running median
    chance: float = 1e-4  # of calling one window of noise a departure
    rounding: float = 0.0  # relative: what computing the loss in another order makes of it, where that was measured
    grad_norm_rounding: float = 0.0  # the same of the grad norm


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveSide:
    """One of the two logs."""

    source: str
    kind: str
    n_points: int  # entries of the loss
    first_step: int | None = None
    last_step: int | None = None
    interval: int = 1
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One acceptance rule: its limit and what was found."""

    name: str
    status: CheckStatus
    text: str
    limit: float | None = None
    actual: float | None = None
    step: int | None = None  # where the actual value was, if it was at one step
    decides: bool = True  # whether the verdict depends on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A difference that is beyond the noise and stays there."""

    series: str
    step: int  # where it begins, by the best split of the difference into before and after
    seen_step: int  # from where it was certain: end of the first window beyond the floor
    until: int | None  # last step of it; None: it lasts to the end
    gap: float  # mean difference while it lasts; of grad_norm the mean relative difference
    floor: float  # what the mean of a window of noise stays below, where it begins
    digest: str | None = None  # of the batch at `step`, if the candidate's log has it


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """The last third: how far the two are apart there, and whether that grows."""

    gap: float  # mean difference
    gap_error: float  # its standard error, autocorrelation taken into account
    slope: float  # per 1,000 steps
    slope_error: float
    end_gap: float  # mean difference of the last tenth
    end_share: float  # the same against the baseline's mean there
    n_effective: float  # independent values that the third is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """A value far above those around it."""

    side: Literal["baseline", "candidate", "both"]
    step: int
    value: float
    usual: float  # running median
    size: float  # in robust standard deviations
    digest: str | None = None  # of the batch that was there


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How two learning-rate curves differ."""

    kind: Literal["same", "shifted", "factor", "warm-up", "peak", "min-lr", "shape", "not-compared"]
    text: str
    step: int | None = None  # first step where they differ
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What a chart needs: at most some hundreds of points over the aligned steps."""

    steps: tuple[int, ...] = ()
    baseline: tuple[float | None, ...] = ()
    candidate: tuple[float | None, ...] = ()
    difference: tuple[float | None, ...] = ()  # mean over the points in between
    floor: tuple[float | None, ...] = ()  # what a window of noise stays below


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveComparison:
    """Whether one training's loss follows another's within the noise."""

    schema: Literal["hypocenter.curves/1"] = "hypocenter.curves/1"
    status: CurveVerdict = "cannot-tell"
    sentence: str = ""
    confidence: Confidence = "possible"
    baseline: CurveSide
    candidate: CurveSide
    noise: tuple[CurveSide, ...] = ()
    floor_source: NoiseSource = "none"
    n_aligned: Count = 0  # steps of which both have a loss
    offset: int = 0  # added to the candidate's steps
    departure: Departure | None = None
    late: Late | None = None
    schedule: Schedule | None = None
    checks: tuple[Check, ...] = ()
    spikes: tuple[Spike, ...] = ()
    first_other_batch: int | None = None  # first step whose batch digests differ
    why: tuple[str, ...] = ()
    next: tuple[str, ...] = ()  # what to do now
    notes: tuple[str, ...] = ()
    track: Track = field(default_factory=Track)
