"""Blame is local: the first place, in execution order, whose inputs agree and whose output does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.common_factor import CommonFactor, common_factor
from hypocenter.compare.comparison import Divergence, Pair
from hypocenter.compare.execution import is_given_to_loss, is_of_update
from hypocenter.compare.inputs import Inputs, inputs_of
from hypocenter.compare.judged import Judged
from hypocenter.compare.noise import ZONE
from hypocenter.compare.randomness import draws_random_numbers
from hypocenter.compare.rows import Flags
from hypocenter.compare.same_tensor import producer, rows_of_tensor
from hypocenter.nouns import Phase
from hypocenter.record.facts_file import Facts

JUMP = 3.0  # an output's error in units of its noise against the largest of its inputs: below it, it was handed on
_MOST_TRIED = 400  # rows of a step that are looked at: what no input explains is among the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """What was found in a step."""

    divergence: Divergence
    is_random: bool = False  # random numbers are drawn there: nothing after it can be compared
    common_factor: CommonFactor | None = None  # all gradients differ by it
    is_gradual: bool = False  # its inputs are nearly as far apart: errors built up, nobody in particular is to blame
    is_doubtful: bool = False  # nobody can tell of some of its inputs whether they differ
    excess: float = 0.0  # error in units of noise


def blame(
    judged: Judged, before: Judged | None, *, is_start: bool, facts: tuple[Facts | None, Facts | None] = (None, None)
) -> Blame | None:
    """The culprit of a step in which something differs; None when what differs only hands on what nobody can judge.

    Args:
        judged: the step.
        before: the step compared before it.
        is_start: it is the first step of the baseline: parameters come from initialisation or a checkpoint.
        facts: what both programs are made of; tells of dropout.
    """
    gradual: Blame | None = None
    for at in np.flatnonzero(judged.differs)[:_MOST_TRIED].tolist():
        found = _judge(judged, at, before, is_start, facts)
        if found is not None and not found.is_gradual:
            return found
        gradual = gradual or found
    return gradual


def _judge(
    judged: Judged, at: int, before: Judged | None, is_start: bool, facts: tuple[Facts | None, Facts | None]
) -> Blame | None:
    phase = judged.spots[at].phase
    if phase in ("param", "optimizer") and not is_start and not is_of_update(judged.spots[at].site):
        return _of_update(judged, at, before)
    shared = common_factor(judged) if phase == "grad" else None
    if shared is not None and shared.outliers:
        at, shared = shared.outliers[0], None
    at = producer(judged, at)
    inputs = inputs_of(judged, at)
    inputs = replace(inputs, rows=inputs.rows & ~rows_of_tensor(judged, at))
    if (judged.differs & inputs.rows).any():
        return None
    row = judged.row(at)
    doubtful = inputs.rows & judged.is_open
    is_doubtful = bool(doubtful.any())
    largest = float(judged.excess[inputs.rows].max(initial=0.0))
    excess = float(judged.excess[at])
    divergence = Divergence(
        step=row.step, microbatch=row.microbatch, phase=_phase(judged, at), site=inputs.owner,
        port=judged.spots[at].port, candidate_site=_candidate_site(row.pair, inputs.owner), error=_error(judged, at),
        floor=row.floor.relative, between=_between(judged, at, inputs),
        inputs_agree=None if doubtful.any() or not _has_inputs(judged, at, inputs) else True, row=row,
    )  # fmt: skip
    return Blame(
        divergence=divergence, excess=excess, common_factor=shared,
        is_doubtful=is_doubtful, is_gradual=_is_handed_on(excess, largest, is_doubtful=is_doubtful),
        is_random=draws_random_numbers(judged, at, inputs, facts),
    )  # fmt: skip


def _is_handed_on(excess: float, largest: float, *, is_doubtful: bool) -> bool:
    """Whether an error may come from the inputs': where these may differ too only a plain jump says otherwise."""
    return excess < ZONE * max(largest, ZONE) if is_doubtful else excess < JUMP * largest


def _phase(judged: Judged, at: int) -> Phase:
    spot = judged.spots[at]
    if is_given_to_loss(spot):
        return "loss"
    if spot.phase == "forward" and spot.site == "":
        if spot.port.startswith("in"):
            return "data"
        if "loss" in spot.port and judged.aligned.baseline.counts["n"][at] == 1:
            return "loss"
    return spot.phase


def _error(judged: Judged, at: int) -> float:
    return float(judged.distances.relative[at])


def _has_inputs(judged: Judged, at: int, inputs: Inputs) -> bool:
    phase = judged.spots[at].phase
    if phase in ("data", "param", "optimizer", "scaler") or (phase == "forward" and judged.spots[at].site == ""):
        return True
    return bool((inputs.rows & (judged.phase != "param")).any())


def _between(judged: Judged, at: int, inputs: Inputs) -> tuple[str, str] | None:
    if not inputs.is_between:
        return None
    phase = "forward" if _phase(judged, at) == "loss" else judged.spots[at].phase
    rows = inputs.rows & (judged.phase == phase)
    gives = rows & np.char.startswith(judged.port, "out" if phase == "forward" else "grad_in")
    if phase == "backward":  # what the owner was given, or what it got back from a module of its own
        own = gives & np.char.startswith(judged.site, f"{inputs.owner}." if inputs.owner else "")
        given = (judged.phase == phase) & (judged.site == inputs.owner) & np.char.startswith(judged.port, "grad_out")
        own |= given & ~judged.differs & ~own.any()
        gives = own if own.any() else gives
    last = np.flatnonzero(gives if gives.any() else rows)
    if not len(last):
        return None
    order = judged.aligned.baseline.order
    before = int(last[np.argmax(order[last])])
    return _name(judged, before), _name(judged, at)


def _name(judged: Judged, at: int) -> str:
    spot = judged.spots[at]
    return f"{spot.site} {spot.port}".strip()


def _candidate_site(pair: Pair, owner: str) -> str:
    """The candidate's name of the place: the pair's spot, or what is as many levels around it as in the baseline."""
    mine, other = pair.baseline[0].site, pair.candidate[0].site
    if mine == owner or not mine.startswith(owner):
        return other
    up = mine[len(owner) :].strip(".").count(".") + 1 if owner else mine.count(".") + 1
    parts = other.split(".")
    return ".".join(parts[: max(0, len(parts) - up)])


def _of_update(judged: Judged, at: int, before: Judged | None) -> Blame | None:
    """A parameter or a state that the update of the step before made different."""
    row, spot = judged.row(at), judged.spots[at]
    excess = float(judged.excess[at])
    step, agree, largest, is_doubtful = row.step, None, 0.0, False
    if before is not None:
        step = before.aligned.step
        own = _of_parameter(before, spot.site)
        if (before.differs & own).any() or (before.negligible is not None and (before.negligible & own).any()):
            return None
        is_doubtful = bool(before.is_open[own].any())
        agree = True if (own & (before.phase == "grad")).any() else None
        largest = float(before.excess[own].max(initial=0.0))
    divergence = Divergence(
        step=step, microbatch=row.microbatch, phase="optimizer", site=spot.site, port=spot.port,
        candidate_site=row.pair.candidate[0].site, error=_error(judged, at), floor=row.floor.relative,
        inputs_agree=agree, row=row,
    )  # fmt: skip
    return Blame(
        divergence=divergence,
        is_doubtful=is_doubtful,
        is_gradual=_is_handed_on(excess, largest, is_doubtful=is_doubtful),
        excess=excess,
    )


def _of_parameter(before: Judged, site: str) -> Flags:
    """Rows of the step before that a parameter's update used."""
    is_own = (before.site == site) & np.isin(before.phase, ("param", "grad", "optimizer"))
    return is_own | (before.phase == "optimizer") & np.isin(before.site, ("lr", "clip_coef"))
