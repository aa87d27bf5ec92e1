"""Which module errs by itself, from two recordings of level `tensors`: nothing is executed but in NumPy.

What the candidate's module F would give for the baseline's input x is estimated by y' + f(x) - f(x'): its own output y'
for its own input x', carried over to x by f, the mathematics of its class in float64 with the candidate's weights and
attributes. The error is the distance of this to the baseline's output. A fault in F's code is in y', one in its weights
or attributes in f(x); what came in from upstream cancels. Classes without f: equal inputs need no carrying over, of
others nobody can tell.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from hypocenter.compare.cards import cards_of
from hypocenter.compare.comparison import Matching, Pair, Spot
from hypocenter.compare.isolation.isolated import (
    Isolated,
    Isolation,
    OwnVerdict,
    answer,
    judged,
    noise_of,
    relative,
    rounding_floor,
    unit,
)
from hypocenter.compare.isolation.recipes import Recipe, makers, named
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.matching import match
from hypocenter.compare.noise import ZONE
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.values.bits import Array
from hypocenter.compare.values.depth import Depth
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.errors import NoRecordingError
from hypocenter.record.facts_file import ModuleFacts
from hypocenter.record.reader import RecordedRun

_BELIEVED = 4.0  # times rounding that a recipe may be off from the baseline's own output


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """A call of a module: pairs of what it took in and gave."""

    order: int
    inputs: list[Pair]
    outputs: list[Pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """Values and facts of both sides at one micro-batch."""

    values: Depth
    step: int
    microbatch: int
    facts: tuple[Mapping[str, ModuleFacts], Mapping[str, ModuleFacts]]

    def arrays(self, pair: Pair) -> tuple[Array, Array] | None:
        return self.values.arrays(pair, self.step, self.microbatch)

    def dtypes(self, pair: Pair) -> tuple[str, str]:
        views = self.values.views(pair, self.step, self.microbatch)
        return (views[0][0].dtype, views[0][1].dtype) if views else ("", "")

    def module(self, site: str, side: int) -> tuple[ModuleFacts, dict[str, Array]] | None:
        """Facts and weights of a module; None when a weight was not recorded, or it has nothing but modules in it."""
        facts = self.facts[side].get(site)
        values = (self.values.baseline, self.values.candidate)[side]
        step = self.step + (self.values.shift if side else 0)
        last = values.last_microbatch(step)
        if facts is None or last is None:
            return None
        stored = values.site(site, step, last)
        if not set(facts.parameters) <= set(stored):
            return None
        weights = {name: stored[name].values() for name in facts.parameters}
        if not weights and any(
            path.startswith(f"{site}." if site else "") for path in self.facts[side] if path != site
        ):
            return None
        return facts, weights


def isolate(
    baseline: RecordedRun, candidate: RecordedRun, *, step: int | None = None, microbatch: int = 0,
    options: Options | None = None,
) -> Isolation:  # fmt: skip
    """Judge each module that both recordings hold inputs and outputs of.

    Args:
        baseline: what is right.
        candidate: what is asked about.
        step: of the baseline; the first of which both hold values when not given.
        microbatch: the one to look at.
        options: a map, sites (shell pattern), plug-ins.

    Raises:
        NoRecordingError: a recording holds no values at this step.
    """
    options = options or Options()
    values = Depth(
        baseline=RecordedValues(baseline), candidate=RecordedValues(candidate), shift=shift_between(baseline, candidate)
    )
    at = _step(values, step, microbatch, (baseline, candidate))
    facts = [run.facts() for run in (baseline, candidate)]
    known = [{one.path: one for one in of.modules} if of is not None else {} for of in facts]
    run_cards = cards_of(baseline), cards_of(candidate)
    matching = options.matching or match(
        run_cards[0].cards, run_cards[1].cards, options.map, baseline_facts=facts[0], candidate_facts=facts[1],
        plugins=options.plugins,
    )  # fmt: skip
    both = _Both(values=values, step=at, microbatch=microbatch, facts=(known[0], known[1]))
    modules = [
        found
        for (site, call), calls in _calls(matching, {card.spot: card.order for card in run_cards[0].cards}).items()
        if not options.site or fnmatch.fnmatchcase(site, options.site)
        for found in _judge(site, call, calls, both)
    ]
    return answer(modules, baseline=str(baseline.directory), candidate=str(candidate.directory), notes=values.problems)


def _step(values: Depth, step: int | None, microbatch: int, runs: tuple[RecordedRun, RecordedRun]) -> int:
    mine = {of for of, batch in values.baseline.batches() if batch == microbatch}
    theirs = {of - values.shift for of, batch in values.candidate.batches() if batch == microbatch}
    for steps, run in ((mine, runs[0]), (theirs, runs[1])):
        if not steps or (step is not None and step not in steps):
            raise NoRecordingError(
                "no values were recorded here" if not steps else f"no values were recorded at step {step}",
                where=str(run.directory), why="modules are isolated by what they took in and gave, of one process",
                fix="record both with --level tensors",
            )  # fmt: skip
    common = mine & theirs
    if not common:
        raise NoRecordingError("the recordings have no step with values in common", where=str(runs[1].directory))
    return min(common) if step is None else step


def _calls(matching: Matching, order: Mapping[Spot, int]) -> dict[tuple[str, int], _Call]:
    """Forward pairs of one spot each, by the baseline's module and call."""
    found: dict[tuple[str, int], _Call] = {}
    for pair in matching.pairs:
        spot = pair.baseline[0]
        if spot.phase != "forward" or len(pair.baseline) + len(pair.candidate) != 2:
            continue
        call = found.setdefault((spot.site, spot.call), _Call(order=order.get(spot, 0), inputs=[], outputs=[]))
        (call.inputs if spot.port.startswith("in") else call.outputs).append(pair)
    return {key: call for key, call in found.items() if call.inputs and call.outputs}


def _judge(site: str, number: int, call: _Call, both: _Both) -> Iterator[Isolated]:
    """The worst output of a call; nothing when its values were not recorded."""
    inputs = [both.arrays(pair) for pair in call.inputs]
    outputs = [(pair, arrays) for pair in call.outputs if (arrays := both.arrays(pair)) is not None]
    if any(one is None for one in inputs) or not outputs:
        return
    same = all(np.array_equal(one[0], one[1], equal_nan=True) for one in inputs if one is not None)
    name = call.outputs[0].candidate[0].site
    facts = both.facts[1].get(name)
    verdicts = [
        _verdict(site, name, call.inputs, pair, (inputs[0] or arrays), arrays, both, same=same)
        for pair, arrays in outputs
    ]
    worst = max(range(len(verdicts)), key=lambda at: (verdicts[at].rank, verdicts[at].error or 0.0))
    one = verdicts[worst]
    yield Isolated(
        site=site, candidate_site=name, kind=facts.kind if facts else "", port=outputs[worst][0].baseline[0].port,
        call=number, step=both.step, microbatch=both.microbatch, error=one.error, floor=one.floor, verdict=one.verdict,
        how=one.how, why=one.why, order=call.order,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    verdict: OwnVerdict
    error: float | None = None
    floor: float | None = None
    how: str = ""
    why: str = ""

    @property
    def rank(self) -> int:
        return ("not-own", "cannot-tell", "own").index(self.verdict)


def _verdict(
    site: str, name: str, inputs: list[Pair], output: Pair, x: tuple[Array, Array], y: tuple[Array, Array],
    both: _Both, *, same: bool,
) -> _Found:  # fmt: skip
    error = relative(y[1], y[0])
    if same and error == 0.0:
        return _Found(verdict="not-own", error=0.0, floor=0.0, how="inputs equal", why="inputs and output are equal")
    dtypes = [*both.dtypes(inputs[0]), *both.dtypes(output)]
    if len(inputs) == 1 and output.baseline[0].port == "out[0]":
        for own, theirs in _recipes(both.module(site, 0), both.module(name, 1), dtypes):
            found = _carried_over(own, theirs, x, y, dtypes)
            if found is not None:
                return found
    by = unit(dtypes)
    if same:
        verdict: OwnVerdict = "not-own" if error <= noise_of(by) else "own" if error > ZONE * by else "cannot-tell"
        return _Found(verdict=verdict, error=error, floor=by, how="inputs equal", why="the floor is assumed")
    return _Found(verdict="cannot-tell", why="its inputs differ, and it cannot be executed again")


def _recipes(
    mine: tuple[ModuleFacts, dict[str, Array]] | None, theirs: tuple[ModuleFacts, dict[str, Array]] | None,
    dtypes: list[str],
) -> Iterator[tuple[Recipe, Recipe]]:  # fmt: skip
    """What both modules may compute: by their classes, else by what their weights allow."""
    if mine is None or theirs is None:
        return
    for name in makers(*mine):
        own = named(name, *mine, dtypes[0])
        other = next(iter(makers(*theirs, known_only=True)), name)
        carried = named(other, *theirs, dtypes[1])
        if own is not None and carried is not None:
            yield own, carried


def _carried_over(
    own: Recipe, theirs: Recipe, x: tuple[Array, Array], y: tuple[Array, Array], dtypes: list[str]
) -> _Found | None:
    """The candidate's output carried over to the baseline's input; None when the recipe is not believed."""
    try:
        mine, moved, carried = own(x[0]), theirs(x[0]), theirs(x[1])
        if mine.shape != y[0].shape or moved.shape != carried.shape or moved.shape != y[1].shape:
            return None
        is_index = not any(name in dtypes[:2] for name in ("float64", "float32", "float16", "bfloat16"))
        rounding = rounding_floor(own, x[0], unit(dtypes), is_index=is_index)
    except (ValueError, IndexError):  # NumPy says so when shapes do not fit
        return None
    residual = relative(mine, y[0])
    if not residual <= _BELIEVED * rounding:
        return None
    error, floor = relative(y[1] + moved - carried, y[0]), max(rounding, residual)
    why = "" if error <= noise_of(floor) else _where(own, theirs, x, y, floor)
    return _Found(verdict=judged(error, floor), error=error, floor=floor, how="re-executed", why=why)


def _where(own: Recipe, theirs: Recipe, x: tuple[Array, Array], y: tuple[Array, Array], floor: float) -> str:
    """Whether weights and attributes make the error, or the code that computes."""
    by_settings = relative(theirs(x[0]), own(x[0])) > noise_of(floor)
    by_code = relative(y[1], theirs(x[1])) > noise_of(floor)
    if by_settings and by_code:
        return "its weights or attributes differ, and it computes something else than its class says"
    return "its weights or attributes differ" if by_settings else "it computes something else than its class says"
