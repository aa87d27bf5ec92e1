"""What several fits look at: settings that differ, statistics that no order changes, sizes of differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hypocenter.compare.case import Case, PairedRow, Values
from hypocenter.compare.comparison import Spot

# Relative, of the norm: two sums over the same numbers in another order. Formats by how a product of matrices rounds.
_SUMMED = {"bfloat16": 2.0**-9, "float16": 2.0**-11}
_SUMMED_ELSE = 2.0**-18
_ATTRIBUTES = {"epsilon": "eps", "variance_epsilon": "eps"}  # MindSpore's norms, and RMS norms of HF
_QUERIES = ("q_proj", "query", "wq", "to_q", "linear_q")
_KEYS = ("k_proj", "key", "wk", "to_k", "linear_k")
_VALUES = ("v_proj", "value", "wv", "to_v", "linear_v")
_BEYOND_ROUND = 0x1FFFFF  # bits of a float32's mantissa below the first two


def apart(left: Mapping[str, Any], right: Mapping[str, Any], words: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return the entries that differ and whose name contains one of the words: name to both values."""
    words = tuple(words)
    return {
        name: (left[name], right[name])
        for name in left.keys() & right.keys()
        if left[name] != right[name] and any(word in name.lower() for word in words)
    }


def attributes_apart(case: Case, words: Iterable[str]) -> dict[str, tuple[Any, Any]]:
    """Return the attributes of the culprit module that differ, by name; `words` as for `apart`."""
    mine, other = case.modules
    if mine is None or other is None:
        return {}
    return apart(_renamed(mine.attributes), _renamed(other.attributes), words)


def _renamed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes under the names that torch gives them."""
    return {_ATTRIBUTES.get(name, name): value for name, value in attributes.items()}


def options_apart(case: Case, parameter: str) -> dict[str, tuple[Any, Any]]:
    """Return differing options of the optimizer group that a parameter is in; `kind` is the optimizer's class."""
    sides = _options(case, parameter, 0), _options(case, case.first.candidate_site or parameter, 1)
    if not all(sides):
        return {}
    return {
        name: (sides[0].get(name), sides[1].get(name))
        for name in sides[0].keys() & sides[1].keys()
        if sides[0][name] != sides[1][name]
    }


def _options(case: Case, parameter: str, side: int) -> dict[str, Any]:
    facts = case.facts[side]
    for optimizer in facts.optimizers if facts is not None else ():
        for group in optimizer.groups:
            if parameter in group.parameters:
                return {**group.options, "kind": optimizer.kind}
    return {}


def is_shuffled(row: PairedRow) -> bool:
    """Return whether both sides hold the same numbers in another order, as far as sums and extremes tell."""
    a, b = row.baseline, row.candidate
    distance = row.comparison.distance
    if a.n != b.n or a.n < 2 or not a.sumsq or distance is None or distance.relative < 1e-3:
        return False
    near = max(_SUMMED.get(a.dtype, _SUMMED_ELSE), _SUMMED.get(b.dtype, _SUMMED_ELSE))
    if abs(a.norm - b.norm) > near * a.norm or abs(a.sum - b.sum) > near * a.norm * math.sqrt(a.n):
        return False
    return all(abs(x - y) <= near * a.absmax for x, y in ((a.min, b.min), (a.max, b.max), (a.absmax, b.absmax)))


def are_queries_and_keys_shuffled(case: Case) -> bool:
    """Return whether, in a parameter's attention, the weights of queries and keys are shuffled, but not the values'."""
    owner = case.first.site.rpartition(".")[0]
    if not is_at_start(case) or owner.rpartition(".")[2] not in (*_QUERIES, *_KEYS):
        return False
    queries, keys, values = (_weights(case, owner.rpartition(".")[0], names) for names in (_QUERIES, _KEYS, _VALUES))
    if not (queries and keys and values):
        return False
    return all(map(is_shuffled, [*queries, *keys])) and all(one.agrees for one in values)


def _weights(case: Case, attention: str, names: tuple[str, ...]) -> list[PairedRow]:
    wanted = {f"{attention}.{name}.weight" for name in names}
    return [row for row in case.rows(phase="param", port="value") if row.spot.site in wanted]


def squared_difference(row: PairedRow) -> tuple[float, float, float]:
    """Return ‖candidate - baseline‖² and the low and high end of its estimate; NaN without a distance."""
    distance = row.comparison.distance
    if distance is None or not math.isfinite(distance.relative):
        return math.nan, math.nan, math.nan
    size = row.baseline.sumsq
    if not size and row.baseline.sketch is not None and row.candidate.sketch is not None:
        size, own = 1.0, float(((row.candidate.sketch.astype(float) - row.baseline.sketch) ** 2).mean())
        return own, own / 2, own * 2
    low, high = distance.low or distance.relative, distance.high or distance.relative
    return distance.relative**2 * size, low**2 * size, high**2 * size


def share_along(row: PairedRow, direction: Values) -> float:
    """Return the share of ‖candidate - baseline‖² along another tensor of its shape: cosine squared, by sketches."""
    a, b, d = row.baseline.sketch, row.candidate.sketch, direction.sketch
    if a is None or b is None or d is None:
        return math.nan
    difference, along = b.astype(float) - a, d.astype(float)
    sizes = float(np.dot(difference, difference)) * float(np.dot(along, along))
    return float(np.dot(difference, along)) ** 2 / sizes if sizes else math.nan


def parameter_row(case: Case, name: str) -> PairedRow | None:
    """Return the row of a parameter's value at the step, by the baseline's name; None when there is none."""
    return next(iter(case.rows(phase="param", site=name, port="value")), None)


def parameter_card(case: Case, name: str, *, side: int) -> Any:
    """Return the card of a parameter's value, also of one without counterpart; None when it was not recorded."""
    cards = case.cards[side]
    return cards.get(Spot(phase="param", site=name, port="value"))


def outputs_of(case: Case, module: str) -> list[PairedRow]:
    """Return the rows of a module's first output in the step."""
    return case.rows(phase="forward", site=module, port="out[0]")


def is_at_start(case: Case) -> bool:
    """Return whether the difference is in a parameter's value, as the program began with it."""
    row = case.row
    return case.first.phase == "param" and row is not None and row.spot.port == "value"


def say(value: Any) -> str:
    """Return a setting as it is written: `1e-05`, `[0.9, 0.999]`, `None`."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def held_in(values: Values) -> str:
    """Return the shortest format that holds the extremes exactly; their own dtype when the extremes tell nothing."""
    extremes = np.array([values.min, values.max], np.float32)
    if values.dtype in ("float16", "bfloat16") or values.n < 2 or not np.isfinite(extremes).all():
        return values.dtype
    if not (extremes.view(np.uint32) & _BEYOND_ROUND).any():
        return values.dtype  # zeros, ones and halves are exact in every format, and tell none
    if not (extremes.view(np.uint32) & 0xFFFF).any():  # the lower 16 bits of a float32 are what bfloat16 leaves out
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if (extremes.astype(np.float16) == extremes).all() else values.dtype
