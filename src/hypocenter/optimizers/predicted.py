"""What one step of a rule makes in float64, and how far its rounding may be from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hypocenter.formats import FORMATS
from hypocenter.optimizers.options import Options
from hypocenter.optimizers.rounded import Array, Rounded, given
from hypocenter.optimizers.rule import RULES, decayed

COMPUTED_IN = {name: FORMATS[name] for name in ("float64", "float32", "float16", "bfloat16")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the rule gets, in float64 and flat. `n_steps`: steps before this one. `state` has torch's names."""

    value: Array
    gradient: Array
    n_steps: float
    state: Mapping[str, Array]
    dtype: str
    state_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the rule makes: the parameter, and the new state as far as it is predicted."""

    after: Rounded
    state: Mapping[str, Rounded]


def predict(options: Options, inputs: Inputs) -> Predicted:
    """Predict one step. State, and what comes of the gradient alone, have the state's format; the weight its own."""
    rule = RULES.entries()[options.family]
    form, state_form = COMPUTED_IN[inputs.dtype], COMPUTED_IN[inputs.state_dtype]
    with np.errstate(all="ignore"):  # what is not finite is looked at by the caller
        weight = given(inputs.value, form)
        gradient = decayed(weight, given(inputs.gradient, state_form).stored(state_form), options)
        held = {word: given(values, state_form) for word, values in inputs.state.items()}
        new = rule.remember(gradient, {**held, "step": inputs.n_steps}, options)
        state = {word: value.stored(state_form) for word, value in new.items() if isinstance(value, Rounded)}
        now = {word: value.into(form) for word, value in state.items()}
        towards = rule.formula.direction(gradient, {**now, "step": new["step"]}, options)
        return Predicted(after=weight + rule.change(weight, towards.into(form), options), state=state)


def in_units(apart: Array, unit: Array) -> Array:
    """Return how many rounding errors a result is off; 0 where the unit is infinite, as anything is within it."""
    return np.where(np.isinf(unit) & ~np.isnan(apart), 0.0, apart / unit)
