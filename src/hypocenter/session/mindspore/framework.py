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
from hypocenter.tap.mindspore.names import own_parameters, walk
from hypocenter.tap.mindspore.optimizers import groups_of, loss_scale_of, members, state_of
from hypocenter.tap.mindspore.patches import Patches

_LOW = (ms.float16, ms.bfloat16)
_SETTINGS = ("weight_decay", "loss_scale", "momentum", "dampening", "beta1", "beta2", "eps")
_FAMILIES = {"SGD": "SGD", "Momentum": "SGD", "Adam": "Adam", "AdamWeightDecay": "AdamW", "AdamW": "AdamW"}


class MindSporeFramework(HostArrays):
    """See hypocenter.session.framework."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._optimizers: weakref.WeakKeyDictionary[Any, Optimizer] = weakref.WeakKeyDictionary()

    def schedules(self, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Undo:
        """Schedulers of experimental.optim; those of nn's optimizers go with the optimizer's own counter."""
        return schedule_calls.attach(self._patches, tell, fail)

    def optimizer(self, optimizer: Any) -> Optimizer | None:
        """Of nn, experimental.optim or mint.optim."""
        if optimizer is None:
            return None
        if optimizer not in self._optimizers:
            self._optimizers[optimizer] = Optimizer(optimizer)
        return self._optimizers[optimizer].anew()

    def state_of(self, optimizer: Optimizer, parameter: Any) -> Mapping[str, Any]:
        """What MindSpore keeps in tuples by parameter."""
        return optimizer.states.get(id(parameter), {})

    def family_of(self, optimizer: Optimizer) -> str:
        """Of MindSpore's own classes, not of subclasses: they may do anything."""
        return _FAMILIES.get(optimizer.kind, "") if optimizer.is_plain else ""

    def with_gradients(self, update: Update, parameters: Iterable[Any]) -> list[Any]:
        """Whether the optimizer is given them or not."""
        given = {id(parameter) for parameter, _ in update.gradients}
        given |= {id(weight) for call in update.microbatches for weight in call.weights}
        return [parameter for parameter in parameters if id(parameter) in given]

    def gradient(self, update: Update, parameter: Any) -> Array | None:
        """Without the loss scale that an optimizer takes out itself."""
        found = next((gradient for each, gradient in update.gradients if each is parameter), None)
        values = None if found is None else self.sample(found)
        scale = loss_scale_of(update.optimizer)
        return values if values is None or scale == 1.0 else self.wide(values) / scale

    def sample(self, tensor: Any, size: int = SAMPLE) -> Array | None:
        """Copied: MindSpore may use the memory again."""
        tensor = values_of(tensor)
        if not isinstance(tensor, ms.Tensor) or not tensor.size:
            return None
        if tensor.size > size and ms.get_context("device_target") != "CPU":
            tensor = picked(tensor, size)
        return np.array(strided(host(tensor), size))

    def copied(self, array: Array) -> Array:
        """It is one."""
        return array

    def settings(self, optimizer: Optimizer) -> list[dict[str, float]]:
        """Those that are plain numbers of Python; rates are Parameters, and moved by schedules."""
        return optimizer.settings()[:GROUPS]

    def rounded(self, value: float, dtype: Any) -> float:
        """As MindSpore casts."""
        return float(ms.Tensor(value, dtype).astype(ms.float32).asnumpy())

    def owner(self, roots: Sequence[Any], parameter: Any) -> Any | None:
        """A cell."""
        cells = (cell for root in roots for _, cell in walk(root))
        return next((cell for cell in cells if any(p is parameter for p in own_parameters(cell).values())), None)

    def is_tensor(self, value: object) -> bool:
        """Of MindSpore."""
        return isinstance(value, ms.Tensor)

    def is_low(self, value: object) -> bool:
        """float16 or bfloat16."""
        return isinstance(value, ms.Tensor) and getattr(value, "dtype", None) in _LOW


def picked(tensor: Any, size: int) -> Any:
    """What `strided` takes of it, taken on the device."""
    with ms.common.api._no_grad():
        return tensor.reshape(-1)[:: -(-tensor.size // size)]


class Optimizer:
    """An optimizer in torch's words, as it is at one update: what costs a look at all parameters is read late."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.kind = type(optimizer).__name__
        self.is_plain = type(optimizer).__module__.startswith("mindspore.")
        self._states: dict[int, Mapping[str, Any]] | None = None
        self._options: dict[int, Mapping[str, Any]] | None = None
        self.param_groups = [_Group(self, parameters) for parameters in _by_group(optimizer)]

    def anew(self) -> Optimizer:
        """Another moment: what was read before is not to be used again."""
        self._states = self._options = None
        return self

    @property
    def states(self) -> dict[int, Mapping[str, Any]]:
        """id of a parameter -> its state."""
        if self._states is None:
            self._states = {key: dict(found) for key, found in state_of(self._optimizer()).items()}
        return self._states

    def options(self, parameter: Any) -> Mapping[str, Any]:
        """Hyper-parameters that it is updated with."""
        if self._options is None:
            groups = groups_of(self._optimizer())
            self._options = {id(p): options for options, parameters in groups for p in parameters}
        return self._options.get(id(parameter), {})

    def settings(self) -> list[dict[str, float]]:
        """Plain numbers of its groups, or of itself."""
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
    """Parameters that share their options."""
    groups = getattr(optimizer, "param_groups", None)
    if isinstance(groups, (list, tuple)):
        found = [list(group.get("params", ())) for group in groups if isinstance(group, Mapping)]
    elif getattr(optimizer, "is_group", False):
        found = [[parameter] for parameter in members(optimizer)]
    else:
        found = [members(optimizer)]
    return [parameters for parameters in found if parameters]
