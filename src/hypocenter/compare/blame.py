"""Blame is local: the first place, in execution order, whose inputs agree and whose output does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from hypocenter.compare.comparison import Amplification, Divergence, Pair, is_given_to_loss, is_of_update
from hypocenter.compare.inputs import Inputs, inputs_of, producer, rows_of_tensor
from hypocenter.compare.judged_step import JudgedStep
from hypocenter.compare.noise import ZONE
from hypocenter.compare.rows import Flags, Reals, StepRows
from hypocenter.nouns import Phase
from hypocenter.record.facts_file import Facts, ModuleFacts

JUMP = 3.0  # an output's error in units of its noise against the largest of its inputs: below it, it was handed on
_MOST_TRIED = 400  # rows of a step that are looked at: what no input explains is among the first
_WORD = "drop"  # of classes and attributes: Dropout, dropout, attn_pdrop, drop_path
_MOST = 0.6  # of all gradients must share the factor
_FEWEST = 4  # gradients, below which a shared factor says nothing
_NEAR = 2.0**-10  # relative: a factor this near to another is the same
_SHOWN = 20  # modules, the strongest first
_PORTS: dict[Phase, tuple[str, str]] = {"forward": ("in", "out"), "backward": ("grad_out", "grad_in")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The culprit that was found in a step, and what is known of it."""

    divergence: Divergence
    is_random: bool = False  # random numbers are drawn there: nothing after it can be compared
    common_factor: CommonFactor | None = None  # all gradients differ by it
    is_gradual: bool = False  # its inputs are nearly as far apart: errors built up, nobody in particular is to blame
    is_doubtful: bool = False  # nobody can tell of some of its inputs whether they differ
    excess: float = 0.0  # error in units of noise


def blame(
    judged: JudgedStep,
    before: JudgedStep | None,
    *,
    is_start: bool,
    facts: tuple[Facts | None, Facts | None] = (None, None),
) -> Blame | None:
    """Return the culprit of a step in which something differs; None when that only follows from what nobody can judge.

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
    judged: JudgedStep, at: int, before: JudgedStep | None, is_start: bool, facts: tuple[Facts | None, Facts | None]
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
    """Return whether an error may come from the inputs: if these may differ too, only a plain jump excludes that."""
    return excess < ZONE * max(largest, ZONE) if is_doubtful else excess < JUMP * largest


def _phase(judged: JudgedStep, at: int) -> Phase:
    spot = judged.spots[at]
    if is_given_to_loss(spot):
        return "loss"
    if spot.phase == "forward" and spot.site == "":
        if spot.port.startswith("in"):
            return "data"
        if "loss" in spot.port and judged.aligned.baseline.counts["n"][at] == 1:
            return "loss"
    return spot.phase


def _error(judged: JudgedStep, at: int) -> float:
    return float(judged.distances.relative[at])


def _has_inputs(judged: JudgedStep, at: int, inputs: Inputs) -> bool:
    phase = judged.spots[at].phase
    if phase in ("data", "param", "optimizer", "scaler") or (phase == "forward" and judged.spots[at].site == ""):
        return True
    return bool((inputs.rows & (judged.phase != "param")).any())


def _between(judged: JudgedStep, at: int, inputs: Inputs) -> tuple[str, str] | None:
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


def _name(judged: JudgedStep, at: int) -> str:
    spot = judged.spots[at]
    return f"{spot.site} {spot.port}".strip()


def _candidate_site(pair: Pair, owner: str) -> str:
    """Return the candidate's name of `owner`: go up from the pair's spot by as many levels as in the baseline."""
    mine, other = pair.baseline[0].site, pair.candidate[0].site
    if mine == owner or not mine.startswith(owner):
        return other
    up = mine[len(owner) :].strip(".").count(".") + 1 if owner else mine.count(".") + 1
    parts = other.split(".")
    return ".".join(parts[: max(0, len(parts) - up)])


def _of_update(judged: JudgedStep, at: int, before: JudgedStep | None) -> Blame | None:
    """Blame a parameter or an optimizer state that the update of the step before made different; None if it did not."""
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


def _of_parameter(before: JudgedStep, site: str) -> Flags:
    """Select the rows of the step before that the update of a parameter used."""
    is_own = (before.site == site) & np.isin(before.phase, ("param", "grad", "optimizer"))
    return is_own | (before.phase == "optimizer") & np.isin(before.site, ("lr", "clip_coef"))


def draws_random_numbers(judged: JudgedStep, at: int, inputs: Inputs, facts: tuple[Facts | None, Facts | None]) -> bool:
    """Return whether the code that computed row `at` drops values at random on both sides."""
    spot = judged.spots[at]
    if spot.phase != "forward":
        return False
    module = judged.modules.get(int(judged.aligned.pair[at]), "")
    if _WORD in module.lower() and not inputs.is_between:
        return _changes(judged, at, judged.aligned.baseline) and _changes(judged, at, judged.aligned.candidate)
    pair = judged.pairs[int(judged.aligned.pair[at])]
    rates = _rate(facts[0], inputs.owner), _rate(facts[1], _of_candidate(pair.candidate[0].site, inputs))
    return rates[0] == rates[1] and rates[0] > 0.0


def _changes(judged: JudgedStep, at: int, rows: StepRows) -> bool:
    """Return whether the module's output differs from its input."""
    spot = judged.spots[at]
    entered = (judged.site == spot.site) & (judged.call == spot.call) & (judged.port == "in[0]")
    entered &= (judged.phase == "forward") & (rows.microbatch == rows.microbatch[at])
    found = np.flatnonzero(entered)
    return len(found) > 0 and rows.values["sumsq"][found[0]] != rows.values["sumsq"][at]


def _of_candidate(site: str, inputs: Inputs) -> str:
    return inputs.owner if not inputs.is_between else site.rpartition(".")[0]


def _rate(facts: Facts | None, site: str) -> float:
    """Return the largest dropout rate among the module's own attributes; 0 when it does not train or is not known."""
    module = next((one for one in facts.modules if one.path == site), None) if facts is not None else None
    return max(_rates(module), default=0.0)


def _rates(module: ModuleFacts | None) -> list[float]:
    if module is None or not module.training:
        return []
    named = [value for name, value in module.attributes.items() if _WORD in name.lower()]
    return [float(v) for v in named if isinstance(v, (int, float)) and not isinstance(v, bool) and 0.0 < v < 1.0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonFactor:
    """A factor by which most gradients of a step differ."""

    factor: float
    outliers: tuple[int, ...]  # rows that differ by more than the factor, in order
    n: int  # gradients that share it


def common_factor(judged: JudgedStep) -> CommonFactor | None:
    """Return the factor that most gradients differ by; None when there is none, or it is 1."""
    is_gradient = (judged.phase == "grad") & (judged.port == "grad")
    at = np.flatnonzero(
        is_gradient & np.isfinite(judged.distances.relative) & (judged.aligned.baseline.values["sumsq"] > 0)
    )
    if len(at) < _FEWEST:
        return None
    scale, residual = _parts(judged, at)
    factor = float(np.median(scale))
    if not np.isfinite(factor) or factor == 0.0 or abs(factor - 1.0) <= _NEAR:
        return None
    off = np.maximum(np.abs(scale / factor - 1.0), residual / abs(factor))
    shares = off <= _NEAR + 4.0 * judged.floors.relative[at]
    if shares.mean() < _MOST:
        return None
    out = at[~shares & judged.differs[at]]
    return CommonFactor(factor=factor, outliers=tuple(out.tolist()), n=int(shares.sum()))


def _parts(judged: JudgedStep, at: np.ndarray) -> tuple[Reals, Reals]:
    """Return by which factor each row is the baseline's, and what is left, in units of the baseline's norm.

    Where only summaries are known the multiple is that of the norms, and nothing is known to be left.
    """
    a, b = judged.aligned.baseline.values["sumsq"][at], judged.aligned.candidate.values["sumsq"][at]
    ratio = np.sqrt(b / a)
    scale, cosine = judged.distances.scale[at], judged.distances.cosine[at]
    left = ratio**2 * np.maximum(1.0 - cosine**2, 0.0)
    is_known = np.isfinite(scale) & np.isfinite(cosine)
    return np.where(is_known, scale, ratio), np.sqrt(np.where(is_known, left, 0.0))


def amplifications(judged: JudgedStep) -> tuple[Amplification, ...]:
    """Return the modules of a step that make the relative error grow the most from inputs to output."""
    found: list[Amplification] = []
    relative = np.where(np.isfinite(judged.distances.relative), judged.distances.relative, 0.0)
    for phase, (given, gives) in _PORTS.items():
        inputs, outputs = {}, {}
        rows = np.flatnonzero((judged.phase == phase) & (relative > 0.0))
        for at in rows.tolist():
            spot = judged.spots[at]
            side = outputs if spot.port.startswith(gives) else inputs if spot.port.startswith(given) else None
            key = spot.site, spot.call, int(judged.aligned.baseline.microbatch[at])
            if side is not None:
                side[key] = max(side.get(key, 0.0), float(relative[at]))
        best: dict[str, float] = {}
        for key, error in outputs.items():
            if key in inputs:
                best[key[0]] = max(best.get(key[0], 0.0), error / inputs[key])
        found += [Amplification(site=site, phase=phase, factor=factor) for site, factor in best.items()]
    return tuple(sorted(found, key=lambda one: -one.factor)[:_SHOWN])
