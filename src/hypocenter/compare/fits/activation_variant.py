"""The activation function is another one, or another variant of the same.

What it means
    GELU exists exact, by tanh and by a sigmoid; SiLU, GELU and ReLU are easily confused. They differ by 2^-12 to 2^-2.

How it is decided
    The class of the activation module differs between the runs, or a function or name set on the first module that
    differs does (act, activation_func, hidden_act, approximate). When neither was recorded: each of these functions has
    a smallest value of its own (GELU -0.169971, by tanh -0.170041, by sigmoid -0.163611, SiLU -0.278465); the smallest
    output of a large enough tensor tells them apart.

What to do
    Take the same function: `gelu` is exact in HF, `gelu_new` and `gelu_pytorch_tanh` are the tanh form.

When it is wrong
    When a module of another class computes the same function, and something else inside differs.
"""

from __future__ import annotations

from hypocenter.compare.case import Case, Values
from hypocenter.compare.comparison import Fit
from hypocenter.compare.fit_evidence import attributes_apart
from hypocenter.compare.fitting import fit
from hypocenter.record.facts_file import ModuleFacts

_WORDS = ("gelu", "silu", "swish", "relu", "tanh", "sigmoid", "mish", "glu", "softplus", "activation")
_SETTINGS = ("act", "approximate")  # how attributes that choose a function are called
_SMALLEST = {
    "exact GELU": -0.1699712, "GELU by tanh": -0.1700410, "GELU by sigmoid": -0.1636109, "SiLU": -0.2784645,
    "ReLU": 0.0,
}  # fmt: skip
_NEAR = 2e-5  # absolute: GELU's variants are 7e-5 apart; a tensor of some thousand elements comes this near


@fit("activation-variant")
def activation_variant(case: Case) -> Fit | None:
    """Another activation function in the first module that differs."""
    if case.first.phase != "forward" or not case.inputs_agree:
        return None
    found = _told(case)
    if found is not None:
        return _answer(case, *found, confidence="proven")
    row = case.row
    if row is None or row.spot.port != "out[0]" or all(case.modules):
        return None
    names = _by_smallest(row.baseline), _by_smallest(row.candidate)
    return _answer(case, *names, confidence="likely") if all(names) and names[0] != names[1] else None


def _told(case: Case) -> tuple[str, str] | None:
    mine, other = case.modules
    if mine is None or other is None:
        return None
    if mine.kind != other.kind and _is_activation(mine.kind) and _is_activation(other.kind):
        return mine.kind, other.kind
    for name in sorted(mine.functions.keys() & other.functions.keys()):
        pair = mine.functions[name], other.functions[name]
        if pair[0] != pair[1] and (_is_activation(pair[0]) or _is_activation(pair[1])):
            return pair
    chosen = {name: pair for name, pair in attributes_apart(case, _SETTINGS).items() if _chooses(pair)}
    pair = next(iter(chosen.values()), None)
    return (str(pair[0]), str(pair[1])) if pair is not None else _of_children(case, mine, other)


def _chooses(pair: tuple[object, object]) -> bool:
    return all(isinstance(value, (str, bool)) for value in pair)


def _of_children(case: Case, mine: ModuleFacts, other: ModuleFacts) -> tuple[str, str] | None:
    """Return the classes of the activation when it is a module inside that was not called by itself; else None."""
    for name in _SETTINGS[:1]:
        paths = f"{mine.path}.{name}", f"{other.path}.{name}"
        pair = case.module(paths[0], side=0), case.module(paths[1], side=1)
        if pair[0] is None or pair[1] is None or (pair[0].path, pair[1].path) != paths:
            continue  # not recorded there: the module around it says nothing of its function
        if pair[0].kind != pair[1].kind:
            return pair[0].kind, pair[1].kind
    return None


def _is_activation(name: str) -> bool:
    return any(word in name.lower() for word in _WORDS)


def _by_smallest(values: Values) -> str:
    return next((name for name, least in _SMALLEST.items() if abs(values.min - least) < _NEAR), "")


def _answer(case: Case, mine: str, other: str, *, confidence: str) -> Fit:
    return Fit(
        name="activation-variant", cause="config-mismatch", explained=1.0, confidence=confidence,  # type: ignore[arg-type]
        text=f"{case.first.site} is {mine} in the baseline and {other} in the candidate",
        values={"baseline": mine, "candidate": other}, fix="take the same activation function on both sides",
    )  # fmt: skip
