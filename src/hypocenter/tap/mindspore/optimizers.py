"""State and options of MindSpore's optimizers in torch's words: nn.optim, experimental.optim and mint.optim.

They keep state in tuples of Parameters, in the order of `optimizer.parameters`, under words of their own; those of one
quantity get one word here. What has no word here keeps MindSpore's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor  # pyright: ignore[reportMissingImports]

from hypocenter.optimizers.rule import words_of

_NO_STATE = ("stat", "lrs", "weight_decay", "learning_rate", "group_lr", "group_weight_decay")
_COUNTERS = ("state_step", "step_t", "global_step")


def state_of(optimizer: Any) -> dict[int, list[tuple[str, Any]]]:
    """Return, by a parameter's id, (word, tensor) of what is kept for it; `step` is one counter for all."""
    parameters = members(optimizer)
    found: dict[int, list[tuple[str, Any]]] = {id(parameter): [] for parameter in parameters}
    words = words_of(*(kind.__name__ for kind in type(optimizer).__mro__))
    for name, held in _tuples(optimizer).items():
        if len(held) != len(parameters) or not all(isinstance(each, Tensor) for each in held):
            continue
        if any(id(each) in found for each in held):  # it is another list of the parameters
            continue
        if name == "accum" and _is_first_sgd_step(optimizer):
            continue  # it is not used: the first buffer is the gradient
        for parameter, tensor in zip(parameters, held, strict=True):
            found[id(parameter)].append((words.get(name, name), tensor))
    counter = counter_of(optimizer)
    if counter is not None:
        for states in found.values():
            states.append(("step", counter))
    return {key: states for key, states in found.items() if states}


def members(optimizer: Any) -> list[Any]:
    """Return the parameters, in the order in which gradients are given."""
    return list(getattr(optimizer, "parameters", ()) or ())


def counter_of(optimizer: Any) -> Any | None:
    """Return the Parameter that counts the steps that were taken; None without one."""
    held = (getattr(optimizer, name, None) for name in _COUNTERS)
    return next((counter for counter in held if isinstance(counter, Parameter)), None)


def bases_of(optimizer: Any) -> list[str]:
    """Return the optimizer's class and those that it derives from, as `module.Class`."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(optimizer).__mro__ if kind is not object]


def groups_of(optimizer: Any) -> list[tuple[dict[str, Any], list[Any]]]:
    """Return (options, parameters) of each group at this step, in torch's words. Reads from the host."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, (list, tuple)):
        return [_as_group(group, optimizer) for group in groups if isinstance(group, Mapping)]
    shared = _options(optimizer)
    split: dict[tuple[tuple[str, float], ...], list[Any]] = {}
    for index, parameter in enumerate(members(optimizer)):
        own = {"lr": _rate(optimizer, index), "weight_decay": _decay(optimizer, index)}
        split.setdefault(tuple(own.items()), []).append(parameter)
    return [({**shared, **dict(own)}, parameters) for own, parameters in split.items()]


def loss_scale_of(optimizer: Any) -> float:
    """Return the scale by which an nn optimizer divides gradients itself; 1 for none."""
    scale = getattr(optimizer, "loss_scale", 1.0)
    return float(scale) if isinstance(scale, (int, float)) and scale else 1.0


def _as_group(group: Mapping[str, Any], optimizer: Any) -> tuple[dict[str, Any], list[Any]]:
    options = {str(key): plain for key, value in group.items() if (plain := _plain(value)) is not None}
    options.pop("params", None)
    if any(kind.__module__.startswith("mindspore.experimental.optim.") for kind in type(optimizer).__mro__):
        if "betas" in options:  # what its graph computes with
            options["betas"] = tuple(float(np.float32(beta)) for beta in options["betas"])
            n = (_plain(counter_of(optimizer)) or 0.0) + 1.0
            options["beta_powers"] = [float(np.float32(beta**n)) for beta in options["betas"]]
        options["eps_before_correction"] = any(kind.__name__ == "Adam" for kind in type(optimizer).__mro__)  # ops.Adam
    return options, list(group.get("params", ()))


def _options(optimizer: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    betas = _plain(getattr(optimizer, "beta1", None)), _plain(getattr(optimizer, "beta2", None))
    if None not in betas:
        options["betas"] = betas
    for word, names in (("eps", ("eps", "epsilon")), ("momentum", ("momentum",)), ("dampening", ("dampening",))):
        value = next((v for name in names if (v := _plain(getattr(optimizer, name, None))) is not None), None)
        if value is not None:
            options[word] = value
    options["nesterov"] = bool(getattr(optimizer, "nesterov", getattr(optimizer, "use_nesterov", False)))
    if "beta1_power" in getattr(optimizer, "_params", {}):  # the others do not correct their moments for the bias
        options["amsgrad"] = bool(getattr(optimizer, "use_amsgrad", False))
        options["eps_before_correction"] = True  # lr * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps): ops.Adam
        powers = [_next_power(optimizer, name) for name in ("beta1", "beta2")]
        if None not in powers:
            options["beta_powers"] = powers
    elif "betas" in options:
        options["bias_correction"] = False
    return options


def _next_power(optimizer: Any, name: str) -> float | None:
    """Return the power of a beta that an Adam of nn computes itself, in float32, for the coming step; or None."""
    beta, power = _plain(getattr(optimizer, name, None)), _plain(getattr(optimizer, f"{name}_power", None))
    return None if beta is None or power is None else float(np.float32(beta) * np.float32(power))


def _rate(optimizer: Any, index: int) -> float:
    rate = getattr(optimizer, "learning_rate", None)
    if getattr(optimizer, "is_group_lr", False):
        rate = rate[index] if isinstance(rate, (list, tuple)) else list(rate or ())[index]
    return _now(rate, optimizer)


def _decay(optimizer: Any, index: int) -> float:
    """Return the weight decay of one parameter, 0 for what MindSpore leaves out (biases and norms, by name)."""
    decay = getattr(optimizer, "weight_decay", 0.0)
    if isinstance(decay, (list, tuple)):
        decay = decay[index]
    flags = getattr(optimizer, "decay_flags", None)
    if isinstance(flags, (list, tuple)) and index < len(flags) and not flags[index]:
        return 0.0
    return _now(decay, optimizer) / loss_scale_of(optimizer)  # nn.Optimizer multiplies it in


def _now(value: Any, optimizer: Any) -> float:
    """Return a number, or a schedule's number at this step; NaN where that cannot be told."""
    number = _plain(value)
    if isinstance(number, (int, float)):
        return float(number)
    try:
        if type(value).__name__ == "_IteratorLearningRate":  # its own operator fails beyond the end of the table
            table, step = value.learning_rate.asnumpy(), int(optimizer.global_step.asnumpy().reshape(-1)[0])
            return float(table[min(step, len(table) - 1)])
        return float(_plain(value(optimizer.global_step)) or 0.0)
    except Exception:  # a schedule of another kind
        return float("nan")


def _plain(value: Any) -> Any:
    """Return a number, bool, string or tuple of numbers; None for anything else."""
    if isinstance(value, Tensor):
        return float(value.asnumpy().reshape(-1)[0]) if value.size == 1 else None
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)) and value:
        items: Sequence[Any] = [_plain(each) for each in value]
        return None if any(not isinstance(each, (int, float)) for each in items) else tuple(items)
    return None


def _tuples(optimizer: Any) -> dict[str, Sequence[Any]]:
    return {
        name: held
        for name, held in {**vars(optimizer), **getattr(optimizer, "_params", {})}.items()
        if isinstance(held, (tuple, list)) and held and name not in _NO_STATE and isinstance(held[0], Parameter)
    }


def _is_first_sgd_step(optimizer: Any) -> bool:
    """Return whether SGD's buffers have not been used yet, which MindSpore marks in `stat` (all are the same)."""
    stat = getattr(optimizer, "stat", None)
    if not isinstance(stat, (tuple, list)) or not stat or not isinstance(stat[0], Tensor) or not stat[0].size:
        return False
    return bool(stat[0].asnumpy().reshape(-1)[0] > 0)
