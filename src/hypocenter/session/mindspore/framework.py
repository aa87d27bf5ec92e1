"""MindSpore, as observers that serve every framework need it. Arrays are NumPy's, on the host."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np

from hypocenter.session.events import Update
from hypocenter.session.framework import GROUPS, SAMPLE, Undo
from hypocenter.session.host_arrays import Array, HostArrays, strided
from hypocenter.tap.mindspore import schedule_calls
from hypocenter.tap.mindspore.gradients import host, values_of
from hypocenter.tap.mindspore.names import own_parameters, unwrap, walk
from hypocenter.tap.mindspore.optimizers import groups_of, loss_scale_of, members, state_of
from hypocenter.tap.mindspore.patches import Patches

_LOW = (ms.float16, ms.bfloat16)
_SETTINGS = ("weight_decay", "loss_scale", "momentum", "dampening", "beta1", "beta2", "eps")
_FAMILIES = {"SGD": "SGD", "Momentum": "SGD", "Adam": "Adam", "AdamWeightDecay": "AdamW", "AdamW": "AdamW"}


class MindSporeFramework(HostArrays):
    """Does for MindSpore what hypocenter.session.framework asks of a framework."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._optimizers: weakref.WeakKeyDictionary[Any, Optimizer] = weakref.WeakKeyDictionary()

    def schedules(self, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Undo:
        """Hear of the steps of experimental.optim's schedulers; schedules of nn's optimizers follow its own counter."""
        return schedule_calls.attach(self._patches, tell, fail)

    def optimizer(self, optimizer: Any) -> Optimizer | None:
        """Return an optimizer of nn, experimental.optim or mint.optim in torch's words; None if there is none."""
        if optimizer is None:
            return None
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = Optimizer(optimizer)
        return self._optimizers[optimizer].anew()

    def state_of(self, optimizer: Optimizer, parameter: Any) -> Mapping[str, Any]:
        """Return the optimizer's state of a parameter, which MindSpore keeps in tuples by parameter."""
        return optimizer.states.get(id(parameter), {})

    def family_of(self, optimizer: Optimizer) -> str:
        """Name the family of MindSpore's own classes; "" for subclasses, which may do anything."""
        return _FAMILIES.get(optimizer.kind, "") if optimizer.is_plain else ""

    def with_gradients(self, update: Update, parameters: Iterable[Any]) -> list[Any]:
        """Return the parameters for which gradients were taken, whether the optimizer was given them or not."""
        given = {id(parameter) for parameter, _ in update.gradients}
        given |= {id(weight) for call in update.microbatches for weight in call.weights}
        return [parameter for parameter in parameters if id(parameter) in given]

    def gradient(self, update: Update, parameter: Any) -> Array | None:
        """Return a sample of the gradient, without the loss scale that the optimizer takes out itself."""
        found = next((gradient for each, gradient in update.gradients if each is parameter), None)
        values = None if found is None else self.sample(found)
        scale = loss_scale_of(update.optimizer)
        return values if values is None or scale == 1.0 else self.wide(values) / scale

    def sample(self, tensor: Any, size: int = SAMPLE) -> Array | None:
        """Return a sample of a tensor, copied: MindSpore may use the memory again."""
        tensor = values_of(tensor)
        if not isinstance(tensor, ms.Tensor) or not tensor.size:
            return None
        if tensor.size > size and ms.get_context("device_target") != "CPU":
            tensor = picked(tensor, size)
        return np.array(strided(host(tensor), size))

    def copied(self, array: Array) -> Array:
        """Return the array itself, as a sample is a copy already."""
        return array

    def settings(self, optimizer: Optimizer) -> list[dict[str, float]]:
        """Return the settings that are plain numbers of Python; rates are Parameters, which schedules move."""
        return optimizer.settings()[:GROUPS]

    def rounded(self, value: float, dtype: Any) -> float:
        """Round a value to the format as MindSpore casts it."""
        return float(ms.Tensor(value, dtype).astype(ms.float32).asnumpy())

    def named(self, model: Any) -> tuple[str, Mapping[str, Any]]:
        """Return the class of a model, and its parameters by all the attributes that lead to them."""
        found = {
            f"{name}.{key}" if name else key: parameter
            for name, cell in walk(model)
            for key, parameter in own_parameters(cell).items()
            if parameter is not None
        }
        return type(unwrap(model)).__name__, found

    def owner(self, roots: Sequence[Any], parameter: Any) -> Any | None:
        """Return the cell that holds a parameter; None if no cell of these models does."""
        cells = (cell for root in roots for _, cell in walk(root))
        return next((cell for cell in cells if any(p is parameter for p in own_parameters(cell).values())), None)

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a tensor of MindSpore."""
        return isinstance(value, ms.Tensor)

    def is_low(self, value: object) -> bool:
        """Return whether a value is a tensor of float16 or bfloat16."""
        return isinstance(value, ms.Tensor) and getattr(value, "dtype", None) in _LOW


def picked(tensor: Any, size: int) -> Any:
    """Return the elements that `strided` would take of a tensor, taken on the device."""
    with ms.common.api._no_grad():
        return tensor.reshape(-1)[:: -(-tensor.size // size)]


class Optimizer:
    """An optimizer in torch's words, as it is at one update; what needs a look at all parameters is read late."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.kind = type(optimizer).__name__
        self.is_plain = type(optimizer).__module__.startswith("mindspore.")
        self._states: dict[int, Mapping[str, Any]] | None = None
        self._options: dict[int, Mapping[str, Any]] | None = None
        self.param_groups = [_Group(self, parameters) for parameters in _by_group(optimizer)]

    def anew(self) -> Optimizer:
        """Forget what was read of the optimizer, as another update has come, and return the same object."""
        self._states = self._options = None
        return self

    @property
    def states(self) -> dict[int, Mapping[str, Any]]:
        """The state of each parameter, by the parameter's id."""
        if self._states is None:
            self._states = {key: dict(found) for key, found in state_of(self._optimizer()).items()}
        return self._states

    def options(self, parameter: Any) -> Mapping[str, Any]:
        """Return the hyper-parameters that a parameter is updated with."""
        if self._options is None:
            groups = groups_of(self._optimizer())
            self._options = {id(p): options for options, parameters in groups for p in parameters}
        return self._options.get(id(parameter), {})

    def settings(self) -> list[dict[str, float]]:
        """Return the plain numbers among the optimizer's settings, for each of its groups."""
        optimizer = self._optimizer()
        groups = getattr(optimizer, "param_groups", None)
        own: dict[str, Any] = {name: getattr(optimizer, name, None) for name in _SETTINGS}
        held: Sequence[Mapping[str, Any]] = groups if isinstance(groups, (list, tuple)) else [own]
        return [{str(key): value for key, value in each.items() if type(value) in (int, float)} for each in held]


class _Group(Mapping[str, Any]):
    """An entry of `param_groups`. Reading an option may wait for the device."""

    def __init__(self, optimizer: Optimizer, parameters: list[Any]) -> None:
        self._optimizer, self._parameters = optimizer, parameters

    def __getitem__(self, key: str) -> Any:
        return self._parameters if key == "params" else self._optimizer.options(self._parameters[0])[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("params", *self._optimizer.options(self._parameters[0])))

    def __len__(self) -> int:
        return 1 + len(self._optimizer.options(self._parameters[0]))


def _by_group(optimizer: Any) -> list[list[Any]]:
    """Return lists of parameters that share their options."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, (list, tuple)):
        found = [list(group.get("params", ())) for group in groups if isinstance(group, Mapping)]
    elif getattr(optimizer, "is_group", False):
        found = [[parameter] for parameter in members(optimizer)]
    else:
        found = [members(optimizer)]
    return [parameters for parameters in found if parameters]
