"""What was found out about optimizer steps. Renderings and stages are made from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hypocenter.compare.updates.recorded import ParameterUpdate
from hypocenter.nouns import Confidence
from hypocenter.optimizers.options import Options

RowVerdict = Literal["as-stated", "differs", "cannot-tell", "skipped"]
Status = Literal["same", "diverged", "cannot-tell"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRow:
    """One parameter's update, done again in float64 with the options that its optimizer states.

    Attributes:
        options: what the optimizer says that it does; None: its rule is not known.
        verdict: "as-stated": the recorded result is the rule's, to within rounding.
        error_units: largest difference between recorded and predicted, in rounding errors of the parameter's format
            (after, or in the new state where `worst_port` says so); the limit is `optimizers.rounded.ALLOWED`.
        relative_error: of the whole update: |recorded - predicted| / |recorded - before|.
        why: in words, where it cannot be told.
        update: the recorded values, for whoever wants to look deeper.
    """

    step: int
    rank: int
    name: str
    kind: str
    options: Options | None
    verdict: RowVerdict
    n: int = 0
    dtype: str = ""
    error_units: float = 0.0
    relative_error: float = 0.0
    update_norm: float = 0.0
    worst_port: str = "value"
    why: str = ""
    update: ParameterUpdate = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The options under which a recorded update is what was recorded.

    Attributes:
        options: None: no options explain it.
        changes: of these the ones that are not as stated: name -> (stated, found out).
        also: other sets of changes that explain it as well.
        error_units: with these options.
    """

    options: Options | None
    changes: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])
    also: tuple[Mapping[str, tuple[Any, Any]], ...] = ()
    error_units: float = 0.0
    stated_error_units: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One thing that makes two updates differ.

    Attributes:
        option: field of Options, or "unexplained".
        baseline, candidate: as found out (not as stated).
        effect: how much of the candidate's update it makes: |with - without| / |with|; 0: none at this step.
        text: one sentence.
    """

    option: str
    baseline: Any
    candidate: Any
    effect: float
    confidence: Confidence
    text: str
    cause: str = "config-mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDifference:
    """A pair of parameters whose updates differ, and why."""

    step: int
    baseline: str
    candidate: str
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecaySet:
    """Which parameters decay.

    Attributes:
        decayed, kept: names with and without weight decay.
        measured: of these the ones whose updates show it; of the others only the optimizer's groups say so.
        rates: name -> the decay found out.
    """

    decayed: frozenset[str]
    kept: frozenset[str]
    measured: frozenset[str]
    rates: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateComparison:
    """Two runs' optimizer steps.

    Attributes:
        first: the first parameter, by step and then in the order of the matching, whose update differs.
        differences: of all pairs; at most one for each pair: of its first step.
        decays_only: names that decay on one side only: (baseline's names, candidate's names).
    """

    status: Status
    sentence: str
    first: UpdateDifference | None = None
    differences: tuple[UpdateDifference, ...] = ()
    decays_only: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    n_compared: int = 0
    steps: tuple[int, ...] = ()
    why_not: tuple[str, ...] = ()
