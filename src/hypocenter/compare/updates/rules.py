"""The rules of optimizers in float64, with what float arithmetic may do to each result.

Adam: Kingma & Ba 2015, algorithm 1; AdamW: Loshchilov & Hutter 2019, algorithm 2; SGD, Adagrad: as torch.optim has
them (2.6 to 2.13: torch/optim/sgd.py, adagrad.py). Every prediction comes with the size of one rounding error
(`unit`): of the terms that were added, in the format of the parameter, so that cancellation does not count as a fault.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hypocenter.compare.updates.options import Options
from hypocenter.compare.values.bits import Array

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Distance from 1 to the next number: IEEE 754, and bfloat16."""
ALLOWED = 4.0  # rounding errors that a result may have: see recompute.LIMIT_UNITS
TINY = {"float64": 2.0**-1022, "float32": 2.0**-126, "float16": 2.0**-24, "bfloat16": 2.0**-126}
"""Below this a result may be flushed to zero (float16: its smallest subnormal number)."""

_POWER_OFF = 1e-5  # a power of a beta that float32 multiplied together; further off, it is one of another beta


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the rule gets, in float64, flat. `n_steps`: taken before this one. `state` by torch's words."""

    value: Array
    gradient: Array
    n_steps: float
    state: Mapping[str, Array]
    dtype: str
    state_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A predicted number and the size of one rounding error in it."""

    exact: Array
    unit: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What the rule makes.

    Attributes:
        after: the parameter.
        direction: without decoupled decay the parameter moves by -lr times this.
        state: the new state, as far as it is predicted.
    """

    after: Value
    direction: Array
    state: Mapping[str, Value]


def predict(options: Options, inputs: Inputs) -> Predicted:
    """One step in float64."""
    with np.errstate(all="ignore"):  # what is not finite is looked at by the caller
        return {"adam": _adam, "sgd": _sgd, "adagrad": _adagrad}[options.family](options, inputs)


def corrections(options: Options, n_steps: float) -> tuple[float, float]:
    """What Adam divides its moments by at the n-th step (from 1), so that they start without a bias."""
    if not options.bias_correction:
        return 1.0, 1.0
    kept = options.powers or (math.nan, math.nan)
    exact = options.beta1**n_steps, options.beta2**n_steps
    one, two = (k if abs(k - p) < _POWER_OFF else p for k, p in zip(kept, exact, strict=True))
    return 1 - one, 1 - two


def _adam(options: Options, inputs: Inputs) -> Predicted:
    eps, state_eps = EPS[inputs.dtype], EPS[inputs.state_dtype]
    gradient, terms = _with_decay(options, inputs)
    zero = np.zeros_like(inputs.value)
    mean, square = inputs.state.get("exp_avg", zero), inputs.state.get("exp_avg_sq", zero)
    b1, b2, n = options.beta1, options.beta2, inputs.n_steps + 1
    new_mean = b1 * mean + (1 - b1) * gradient
    mean_unit = state_eps * (np.abs(mean) + (1 - b1) * (terms + np.abs(mean))) + TINY[inputs.state_dtype]
    new_square = b2 * square + (1 - b2) * gradient**2
    added = (1 - b2) * terms**2  # of which the gradient with decay may be a small rest
    square_unit = state_eps * (b2 * square + added) + TINY[inputs.state_dtype]
    state = {
        "exp_avg": Value(exact=new_mean, unit=mean_unit),
        "exp_avg_sq": Value(exact=new_square, unit=square_unit),
    }
    divides = new_square
    if options.amsgrad:
        divides = np.maximum(inputs.state.get("max_exp_avg_sq", zero), new_square)
        state["max_exp_avg_sq"] = Value(exact=divides, unit=square_unit)
    c1, c2 = corrections(options, n)
    root = np.sqrt(divides)
    below = root / np.sqrt(c2) + (options.eps / np.sqrt(c2) if options.eps_before_correction else options.eps)
    direction = _divided(new_mean, c1 * below)
    off = _root_off(divides, square_unit) / np.sqrt(c2) + eps * below + TINY[inputs.dtype]
    size = _divided(mean_unit, c1 * below) + np.abs(direction) * (eps + _stretched(off, below))
    return _moved(options, inputs, direction, size, state)


def _sgd(options: Options, inputs: Inputs) -> Predicted:
    eps = EPS[inputs.state_dtype]
    gradient, terms = _with_decay(options, inputs)
    direction, size, state = gradient, eps * terms, {}
    if options.momentum:
        buffer = inputs.state.get("momentum_buffer")
        if buffer is None:
            new, unit = gradient, eps * terms
        else:
            new = options.momentum * buffer + (1 - options.dampening) * gradient
            unit = eps * (abs(options.momentum) * np.abs(buffer) + (1 - options.dampening) * terms)
        state = {"momentum_buffer": Value(exact=new, unit=unit + TINY[inputs.state_dtype])}
        direction, size = new, unit
        if options.nesterov:
            direction = gradient + options.momentum * new
            size = eps * terms + options.momentum * unit + eps * np.abs(options.momentum * new)
    return _moved(options, inputs, direction, size, state)


def _adagrad(options: Options, inputs: Inputs) -> Predicted:
    eps = EPS[inputs.state_dtype]
    gradient, terms = _with_decay(options, inputs)
    total = inputs.state.get("sum", np.zeros_like(inputs.value)) + gradient**2
    total_unit = eps * (total + terms**2) + TINY[inputs.state_dtype]
    root = np.sqrt(total)
    below = (root + options.eps) * (1 + inputs.n_steps * options.lr_decay)
    direction = _divided(gradient, below)
    off = _root_off(total, total_unit) + eps * (root + options.eps) + TINY[inputs.dtype]
    size = eps * (_divided(terms, below) + np.abs(direction)) + np.abs(direction) * _stretched(off, root + options.eps)
    return _moved(options, inputs, direction, size, {"sum": Value(exact=total, unit=total_unit)})


def _with_decay(options: Options, inputs: Inputs) -> tuple[Array, Array]:
    """The gradient with L2 in it, and the size of what was added up to it."""
    gradient = -inputs.gradient if options.maximize else inputs.gradient
    if options.decoupled or not options.weight_decay:
        return gradient, np.abs(gradient)
    decay = options.weight_decay * inputs.value
    return gradient + decay, np.abs(gradient) + np.abs(decay)


def _moved(options: Options, inputs: Inputs, direction: Array, size: Array, state: Mapping[str, Value]) -> Predicted:
    """The parameter after the step. `size`: one rounding error of the direction."""
    kept = 1 - options.lr * options.weight_decay if options.decoupled else 1.0
    after = inputs.value * kept - options.lr * direction
    unit = EPS[inputs.dtype] * np.maximum(np.abs(inputs.value), np.abs(after)) + abs(options.lr) * (
        size + EPS[inputs.dtype] * np.abs(direction)
    )
    return Predicted(after=Value(exact=after, unit=unit + TINY[inputs.dtype]), direction=direction, state=state)


def _root_off(square: Array, unit: Array) -> Array:
    """How far the root may be off when the square is off by one rounding error."""
    return np.minimum(np.sqrt(unit), unit / np.maximum(np.sqrt(square), TINY["float64"]))


def _stretched(off: Array, below: Array) -> Array:
    """By how much of itself a quotient may be off when what divides is off by so much for each rounding error.

    Where all errors that are allowed together could take most of the divisor away nothing can be said: infinite. That
    is so for small second moments in float16, which has no numbers for them.
    """
    left = 1 - ALLOWED * _divided(off, below)
    return np.where(left > 0, _divided(off, below) / np.maximum(left, TINY["float64"]), np.inf)


def _divided(above: Array, below: Array) -> Array:
    """0 / 0 is what rules make of an element that never had a gradient, where eps is 0: not a number in the program
    too, and so not finite here."""
    return np.asarray(above / below)
