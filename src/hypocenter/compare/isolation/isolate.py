"""Which module errs by itself, from two recordings of level `tensors`: nothing is executed but in NumPy.

What the candidate's module F would give for the baseline's input x is estimated by y' + f(x) - f(x'): its own output y'
for its own input x', carried over to x by f, the mathematics of its class in float64 with the candidate's weights and
attributes. The error is the distance of this to the baseline's output. A fault in F's code is in y', one in its weights
or attributes in f(x); what came in from upstream cancels. Classes without f: equal inputs need no carrying over, of
others nobody can tell.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.matching import match
from hypocenter.compare.noise import ZONE
from hypocenter.compare.step_alignment import shift_between
from hypocenter.compare.values.bits import Array
from hypocenter.compare.values.depth import Depth
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.errors import NoRecordingError
from hypocenter.formats import FORMATS, format_of
from hypocenter.record.facts_file import ModuleFacts
from hypocenter.record.reader import RecordedRun

_BELIEVED = 4.0  # times rounding that a recipe may be off from the baseline's own output
Weights = Mapping[str, Array]
Recipe = Callable[[Array], Array]
_ONE_PLUS = ("Gemma", "Qwen3Next", "Qwen3_5")  # norms that store weight - 1 (transformers)
_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of a module: the pairs of its inputs and of its outputs."""

    order: int
    inputs: list[Pair]
    outputs: list[Pair]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Both:
    """Recorded values and module facts of both sides at one micro-batch."""

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
        """Return facts and weights of a module; None when a weight was not recorded, or it only contains modules."""
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
    """Group forward pairs of one spot each by the baseline's module and call; only calls with inputs and outputs."""
    found: dict[tuple[str, int], _Call] = {}
    for pair in matching.pairs:
        spot = pair.baseline[0]
        if spot.phase != "forward" or len(pair.baseline) + len(pair.candidate) != 2:
            continue
        call = found.setdefault((spot.site, spot.call), _Call(order=order.get(spot, 0), inputs=[], outputs=[]))
        (call.inputs if spot.port.startswith("in") else call.outputs).append(pair)
    return {key: call for key, call in found.items() if call.inputs and call.outputs}


def _judge(site: str, number: int, call: _Call, both: _Both) -> Iterator[Isolated]:
    """Yield the verdict on the worst output of a call; nothing when its values were not recorded."""
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
    """Yield pairs of what both modules may compute: by their classes, else by what their weights allow."""
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
    """Carry the candidate's output over to the baseline's input; None when the recipe does not fit the outputs."""
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
    """Say whether weights and attributes make the error, or the code that computes."""
    by_settings = relative(theirs(x[0]), own(x[0])) > noise_of(floor)
    by_code = relative(y[1], theirs(x[1])) > noise_of(floor)
    if by_settings and by_code:
        return "its weights or attributes differ, and it computes something else than its class says"
    return "its weights or attributes differ" if by_settings else "it computes something else than its class says"


# A recipe is only believed for a class if it gives the baseline's own output (isolate.py); so a class that does
# something else than its name or its weights suggest leads to "cannot tell", not to an accusation.
def makers(module: ModuleFacts, weights: Weights, *, known_only: bool = False) -> list[str]:
    """Return names of what the module may compute: by its class, else (not if `known_only`) by its weights."""
    kind = module.kind
    if kind in _KINDS:
        return [_KINDS[kind]]
    if kind.endswith("RMSNorm"):
        return ["rms-norm-plus-one" if kind.startswith(_ONE_PLUS) else "rms-norm"]
    if known_only:
        return []
    if not weights:
        return list(_PLAIN)
    weight = weights.get("weight")
    if weight is None or set(weights) - {"weight", "bias"}:
        return []
    return ["linear", "linear-transposed", "embedding"] if weight.ndim == 2 else ["layer-norm", "rms-norm"]


def named(name: str, module: ModuleFacts, weights: Weights, dtype: str) -> Recipe | None:
    """Return a function that computes the output from the first input; None when weights or attributes do not fit.

    Args:
        name: one of `makers`.
        module: attributes.
        weights: its parameters in float64, by name.
        dtype: of the input (nn.RMSNorm without eps takes that of the format).
    """
    if name in _PLAIN:
        return _PLAIN[name](module.attributes)
    weight, bias = weights.get("weight"), weights.get("bias", np.float64(0.0))
    if name == "dropout":
        return (lambda x: x) if not module.training or not module.attributes.get("p") else None
    if name == "layer-norm":
        return _layer_norm(module.attributes, weight, bias)
    if weight is None:
        return None
    if name == "linear":
        return lambda x: x @ weight.T + bias
    if name == "linear-transposed":
        return lambda x: x @ weight + bias
    if name == "embedding":
        return lambda x: weight[x.astype(np.int64)]
    return _rms_norm(_eps(module.attributes, dtype), weight + 1.0 if name == "rms-norm-plus-one" else weight)


def _eps(attributes: Mapping[str, Any], dtype: str) -> float:
    for name in ("eps", "variance_epsilon", "epsilon"):
        if isinstance(attributes.get(name), (int, float)):
            return float(attributes[name])
    return (format_of(dtype) or FORMATS["float32"]).eps  # torch's own default


def _layer_norm(attributes: Mapping[str, Any], weight: Array | None, bias: Any) -> Recipe:
    shape = attributes.get("normalized_shape")
    n_dims = len(shape) if isinstance(shape, (list, tuple)) else 1
    eps = _eps(attributes, "float32")

    def run(x: Array) -> Array:
        axes = tuple(range(x.ndim - n_dims, x.ndim))
        centred = x - x.mean(axes, keepdims=True)
        y = centred / np.sqrt((centred * centred).mean(axes, keepdims=True) + eps)
        return y * (1.0 if weight is None else weight) + bias

    return run


def _rms_norm(eps: float, weight: Array) -> Recipe:
    def run(x: Array) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight

    return run


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return 1.0 / (1.0 + np.exp(-x))


def _gelu(x: Array) -> Array:
    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def _softmax(attributes: Mapping[str, Any]) -> Recipe | None:
    axis = attributes.get("dim")
    if not isinstance(axis, int):
        return None

    def run(x: Array) -> Array:
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    return run


_PLAIN: dict[str, Callable[[Mapping[str, Any]], Recipe | None]] = {
    "identity": lambda a: lambda x: x,
    "relu": lambda a: lambda x: np.maximum(x, 0.0),
    "silu": lambda a: lambda x: x * _sigmoid(x),
    "gelu-tanh": lambda a: _gelu_tanh,
    "quick-gelu": lambda a: lambda x: x * _sigmoid(1.702 * x),
    "sigmoid": lambda a: _sigmoid,
    "tanh": lambda a: np.tanh,
    "softmax": _softmax,
    "gelu": lambda a: _gelu_tanh if a.get("approximate") == "tanh" else _gelu,
}
_KINDS = {
    "Linear": "linear", "NonDynamicallyQuantizableLinear": "linear", "Conv1D": "linear-transposed",
    "Embedding": "embedding", "LayerNorm": "layer-norm", "T5LayerNorm": "rms-norm", "Dropout": "dropout",
    "Identity": "identity", "GELU": "gelu", "GELUActivation": "gelu", "NewGELUActivation": "gelu-tanh",
    "PytorchGELUTanh": "gelu-tanh", "QuickGELUActivation": "quick-gelu", "ReLU": "relu", "SiLU": "silu",
    "SiLUActivation": "silu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Softmax": "softmax",
}  # fmt: skip


def erf(x: Array) -> Array:
    """Compute the error function of each element, exact to about the last bit (some 100 ns each)."""
    return np.asarray(_erf(x), np.float64)
