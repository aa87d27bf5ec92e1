"""facts.json of a MindSpore program: cells, optimizers and switches, written at the first update of each optimizer."""

from __future__ import annotations

import os
import platform
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore import nn  # pyright: ignore[reportMissingImports]
from mindspore.common import api  # pyright: ignore[reportMissingImports]

from hypocenter.record.facts_file import Facts, GroupFacts, ModuleFacts, OptimizerFacts, TensorFacts, write_facts
from hypocenter.session.claims import claims
from hypocenter.session.facts.plain import NOT_PLAIN, members, place_of, plain
from hypocenter.session.facts.settings_of import take_settings
from hypocenter.session.mindspore.seams import Context
from hypocenter.tap.mindspore.gradients import dtype_name
from hypocenter.tap.mindspore.names import NameMap, children, own_parameters
from hypocenter.tap.mindspore.updates import parameters_of

MAX_OPTIMIZERS = 16  # updates of new ones at which all is read again; a program may make one per step
_ENVIRONMENT = (
    "OMP_NUM_THREADS", "MS_ASCEND_CHECK_OVERFLOW_MODE", "MS_JIT", "MS_DEV_RUNTIME_CONF", "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC", "ASCEND_LAUNCH_BLOCKING", "TE_PARALLEL_COMPILER", "MS_ENABLE_GRACEFUL_EXIT",
)  # fmt: skip
_OPTION_NAMES = {
    "eps": "eps", "epsilon": "eps", "weight_decay": "weight_decay", "momentum": "momentum", "use_nesterov": "nesterov",
    "nesterov": "nesterov", "use_amsgrad": "amsgrad", "decay": "alpha", "dampening": "dampening",
    "loss_scale": "loss_scale", "l1": "l1", "l2": "l2", "accum": "initial_accumulator_value",
}  # fmt: skip
"""Attribute of an optimizer of mindspore.nn -> the name that the same option has in torch."""


class FactsKeeper:
    """Reads cells, optimizers and settings once; holds none of them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        self._optimizers: list[OptimizerFacts] = []
        self._is_broken = False

    def note(self, optimizer: Any, n_microbatches: int, loss_scale: float | None) -> None:
        """Write the facts of a complete program: its models were called, and its optimizer has its parameters."""
        if self._is_broken or optimizer in self._seen or len(self._optimizers) >= MAX_OPTIMIZERS:
            return
        if not claims(self._context.directory, "mindspore"):
            return
        self._seen.add(optimizer)
        try:
            self._write(optimizer, n_microbatches, loss_scale)
        except Exception as error:  # another version of MindSpore: the run can do without
            self._is_broken = True
            self._context.warn(f"facts of the program are not written: {type(error).__name__}: {error}")

    def _write(self, optimizer: Any, n_microbatches: int, loss_scale: float | None) -> None:
        context = self._context
        self._optimizers.append(optimizer_facts(optimizer, context.names))
        facts = Facts(
            modules=cell_facts(context.names),
            optimizers=tuple(self._optimizers),
            settings={
                **settings(),
                "world_size": context.rank()[1],
                "accumulation_steps": n_microbatches,
                "loss_scale": loss_scale,
            },
        )
        folder = context.rank_directory()
        folder.mkdir(parents=True, exist_ok=True)
        write_facts(folder, facts)


def cell_facts(names: NameMap) -> tuple[ModuleFacts, ...]:
    """Return the facts of all cells in the models' own order, under their first names."""
    own = frozenset(members(nn.Cell()))
    seen_configs: set[int] = set()
    found: list[ModuleFacts] = []
    for path, cell in names.cells():
        parameters = own_parameters(cell)
        held = {key: value for key, value in members(cell).items() if key not in own or key == "training"}
        attributes, functions = take_settings(held, seen_configs)
        for key in (*parameters, *children(cell)):
            attributes.pop(key, None)
        if getattr(cell, "has_bias", None) is False:
            attributes["bias"] = None
        found.append(
            ModuleFacts(
                path=path,
                kind=type(cell).__name__,
                where=place_of(type(cell).construct),
                parameters={key: _tensor(p) for key, p in parameters.items() if p is not None},
                attributes=attributes,
                functions={**functions, **_primitives(held)},
                training=bool(getattr(cell, "training", True)),
            )
        )
    return tuple(found)


def _tensor(parameter: Any) -> TensorFacts:
    return TensorFacts(
        shape=tuple(int(size) for size in parameter.shape),
        dtype=dtype_name(parameter),
        trained=bool(parameter.requires_grad),
    )


def _primitives(held: Mapping[str, Any]) -> dict[str, str]:
    """Return attributes that are operators: "gelu": "GeLU"."""
    return {key: f"mindspore.ops.{v.name}" for key, v in held.items() if isinstance(v, ms.ops.Primitive)}


def optimizer_facts(optimizer: Any, names: NameMap) -> OptimizerFacts:
    """Return the optimizer's class, the options of each group under torch's names, and its parameters' names."""
    groups = getattr(optimizer, "param_groups", None)
    of_groups = _of_groups(groups, names) if isinstance(groups, list) else _of_nn(optimizer, names)
    return OptimizerFacts(kind=type(optimizer).__name__, groups=tuple(of_groups))


def _of_groups(groups: list[Any], names: NameMap) -> Iterator[GroupFacts]:
    """Yield the groups of mindspore.experimental.optim and mint.optim, which are like torch's own."""
    for group in groups:
        options = {key: _number(value) for key, value in group.items() if key != "params"}
        yield GroupFacts(
            options={key: value for key, value in options.items() if value is not NOT_PLAIN},
            parameters=tuple(names.label(p) for p in group["params"]),
        )


def _of_nn(optimizer: Any, names: NameMap) -> Iterator[GroupFacts]:
    """Yield groups of a mindspore.nn optimizer, which keeps learning rate and weight decay for each parameter."""
    parameters, held = parameters_of(optimizer), members(optimizer)
    rates, decays = learning_rates(optimizer), _per_parameter(getattr(optimizer, "weight_decay", 0.0))
    told = {new: _number(held[old]) for old, new in _OPTION_NAMES.items() if held.get(old) is not None}
    options = {key: value for key, value in told.items() if value is not NOT_PLAIN}
    betas = [_number(held.get(name)) for name in ("beta1", "beta2")]
    if all(isinstance(beta, float) for beta in betas):
        options["betas"] = betas
    flags = getattr(optimizer, "decay_flags", None)  # without groups what is called beta or gamma is left out
    grouped: dict[tuple[Any, Any], list[str]] = {}
    for i, parameter in enumerate(parameters):
        rate = rates[i] if len(rates) == len(parameters) else next(iter(rates), None)
        decay = decays[i] if len(decays) == len(parameters) else next(iter(decays), None)
        if decay and isinstance(flags, (tuple, list)) and len(flags) == len(parameters) and not flags[i]:
            decay = 0.0
        grouped.setdefault((rate, decay), []).append(names.label(parameter))
    for (rate, decay), labels in grouped.items():
        own = {key: value for key, value in {"lr": rate, "weight_decay": decay}.items() if value is not None}
        yield GroupFacts(options={**options, **own}, parameters=tuple(labels))


def _per_parameter(value: Any) -> list[float | None]:
    return [as_number(each) for each in value] if isinstance(value, (tuple, list)) else [as_number(value)]


def _number(value: Any) -> Any:
    """Return a plain value; a float32 number as it was written (0.9, not 0.8999999761581421)."""
    if isinstance(value, ms.Tensor):
        number = as_number(value)
        return NOT_PLAIN if number is None else float(str(np.float32(number)))
    return plain(value)


_READ: dict[str, Callable[[], Any]] = {
    "mindspore": lambda: ms.__version__,
    "python": platform.python_version,
    "device": lambda: str(ms.get_context("device_target")).lower().replace("ascend", "npu"),
    "mode": lambda: "GRAPH" if ms.get_context("mode") == ms.GRAPH_MODE else "PYNATIVE",
    "jit_level": lambda: ms.get_context("jit_level"),
    "deterministic_algorithms": lambda: ms.get_context("deterministic") == "ON",
    "seed": ms.get_seed,
    "num_threads": lambda: ms.get_context("runtime_num_threads"),
    "parallel_mode": lambda: ms.get_auto_parallel_context("parallel_mode"),
    "gradients_mean": lambda: ms.get_auto_parallel_context("gradients_mean"),
}


def settings() -> dict[str, Any]:
    """Return the switches that change numbers, by name, as far as this MindSpore knows them."""
    found: dict[str, Any] = {}
    for name, read in _READ.items():
        try:
            value = plain(read())
        except Exception:  # another version of MindSpore
            continue
        if value is not NOT_PLAIN:
            found[name] = value
    return found | {f"env.{name}": os.environ[name] for name in _ENVIRONMENT if name in os.environ}


def learning_rate(optimizer: Any) -> float | None:
    """Return the learning rate of the first parameter group; None if it is not a number."""
    return next(iter(learning_rates(optimizer)), None)


def learning_rates(optimizer: Any) -> list[float]:
    """Return the learning rate of each group; a schedule is asked for the step of the optimizer's own counter."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, list):  # mindspore.experimental.optim and mint.optim
        return _numbers([group.get("lr") for group in groups if isinstance(group, dict)])
    if not hasattr(optimizer, "get_lr"):
        return _numbers([getattr(optimizer, "learning_rate", None)])
    with api._no_grad():
        found = tabled(optimizer.learning_rate, optimizer) or optimizer.get_lr()
    return _numbers(found if isinstance(found, (tuple, list)) else [found])


def tabled(rate: Any, optimizer: Any) -> float | None:
    """Return this step's rate from a table of rates by step, or the table's last one; None when it is no table.

    MindSpore's own operator fails beyond the end of the table, and says so at some later operator.
    """
    if type(rate).__name__ != "_IteratorLearningRate":
        return None
    table, step = rate.learning_rate.asnumpy(), int(optimizer.global_step.asnumpy().reshape(-1)[0])
    return as_number(ms.Tensor(table[min(step, len(table) - 1)]))


def _numbers(values: Any) -> list[float]:
    return [number for value in values if (number := as_number(value)) is not None]


def as_number(value: Any) -> float | None:
    """Return a number, or the one in a Tensor or Parameter (0.01, where a float32 was made from 0.01); else None."""
    if isinstance(value, (int, float)):
        return None if isinstance(value, bool) else float(value)
    if isinstance(value, ms.Tensor) and value.size == 1:
        number = value.asnumpy().reshape(-1)[0]
        return float(str(number)) if number.dtype == np.float32 else float(number)
    return None
