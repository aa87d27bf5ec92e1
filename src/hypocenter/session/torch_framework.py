"""torch, as observers that serve every framework need it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

from hypocenter.session.events import Update
from hypocenter.session.framework import GROUPS, SAMPLE, SCHEDULED, Then, Undo
from hypocenter.session.learning_rate import number_of
from hypocenter.session.observers import grid
from hypocenter.session.observers.peeker import Peeker
from hypocenter.session.observers.sampled import Deferred, all_same, gathered_columns, n_changed, sample
from hypocenter.tap import schedule_calls
from hypocenter.tap.flat_parameters import is_flat
from hypocenter.tap.loss_graph import reached
from hypocenter.tap.names import class_name, unwrap, walk
from hypocenter.tap.tape import versions_of

_SAID_TIES = "all_tied_weights_keys"  # of transformers' models, from version 5 on: name -> name of what it is
_NUMBERS = (int, float)
_FAMILIES: dict[type, str] = {torch.optim.SGD: "SGD", torch.optim.Adam: "Adam", torch.optim.AdamW: "AdamW"}


class TorchFramework:
    """See hypocenter.session.framework. Arrays are tensors on their device.

    Args:
        ride: takes a float32 vector along in a transfer that is made anyway.
    """

    xp: Any = torch

    versions = staticmethod(versions_of)

    def __init__(self, ride: Callable[[Tensor, Then], None] = lambda *_: None) -> None:
        self._ride = ride
        self.peek = Peeker().peek  # of a CPU

    def schedules(self, tell: Callable[[Any, Any], None], fail: Callable[[str], None]) -> Undo:
        """Schedulers and `swa_utils`."""
        return schedule_calls.attach(tell, fail)

    def optimizer(self, optimizer: Any) -> torch.optim.Optimizer | None:
        """The torch optimizer in it (accelerate wraps one); None for a framework's own, whose weights are copies."""
        inner = getattr(optimizer, "optimizer", None)
        if isinstance(inner, torch.optim.Optimizer) and optimizer is not inner:
            return self.optimizer(inner)
        return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None

    def state_of(self, optimizer: torch.optim.Optimizer, parameter: Tensor) -> Mapping[str, Any]:
        """Asking with [] would make an entry in the user's optimizer."""
        found: Any = optimizer.state.get(parameter)
        return found or {}

    def family_of(self, optimizer: object) -> str:
        """Not of subclasses: they may do anything."""
        return _FAMILIES.get(type(optimizer), "")

    def with_gradients(self, update: Update, parameters: Iterable[Tensor]) -> list[Tensor]:
        """As they are now."""
        return [parameter for parameter in parameters if parameter.grad is not None]

    def gradient(self, update: Update, parameter: Tensor) -> Tensor | None:
        """As it is now."""
        return sample(parameter.grad) if parameter.grad is not None else None

    def sample(self, tensor: Tensor, size: int = SAMPLE) -> Tensor | None:
        """A view where possible."""
        return sample(tensor, size)

    def is_on_host(self, tensor: Tensor) -> bool:
        """Of a CPU."""
        return tensor.device.type == "cpu"

    def are_same(self, one: Tensor, other: Tensor) -> bool:
        """In one operation."""
        return torch.equal(one, other)

    def copied(self, array: Tensor) -> Tensor:
        """A clone."""
        return array.clone()

    def kind(self, value: object) -> Any:
        """As torch has both."""
        if isinstance(value, Tensor):
            return value.dtype, value.device
        return float if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def gathered(
        self, columns: Sequence[Sequence[Any]], size: int, start: int = 0
    ) -> list[tuple[Tensor, Sequence[int]] | None]:
        """In a few operations, but of what is large."""
        found = gathered_columns(columns, size, start)
        for number, values in enumerate(columns):
            if found[number] is None and {self.kind(each) for each in values} == {float}:
                found[number] = torch.tensor(values, dtype=torch.float64, device="cpu"), [1] * len(values)
        return found

    def all_same(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """One number for each pair."""
        return all_same(pairs)

    def n_changed(self, trios: Sequence[tuple[Tensor | float, Tensor | float | None, float]]) -> list[tuple[int, int]]:
        """In one transfer."""
        return n_changed(trios)

    def settings(self, optimizer: torch.optim.Optimizer) -> list[dict[str, float]]:
        """A group with `initial_lr` is moved by a schedule of torch."""
        found: list[dict[str, float]] = []
        for group in optimizer.param_groups[:GROUPS]:  # loops: a comprehension is a call, and this runs at each step
            numbers: dict[str, float] = {}
            for name, value in group.items():
                if type(value) in _NUMBERS and not ("initial_lr" in group and name in SCHEDULED):
                    numbers[name] = value  # noqa: PERF403
            found.append(numbers)
        return found

    def wide(self, array: Tensor) -> Tensor:
        """On its device."""
        return array.to(grid.wide_dtype(array.device))

    def on_host(self, array: Tensor) -> NDArray[Any]:
        """Waits for the device."""
        return array.detach().reshape(-1).cpu().double().numpy()

    def ulp(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        """On their device."""
        return grid.ulp(values, dtype)

    def rounded(self, value: float, dtype: torch.dtype) -> float:
        """As torch casts."""
        return grid.rounded(value, dtype)

    def named(self, model: torch.nn.Module) -> tuple[str, Mapping[str, Any]]:
        """As `hypocenter.tap.names` takes wrappers off."""
        found = {
            f"{name}.{key}" if name else key: parameter
            for name, module in walk(model)
            for key, parameter in module._parameters.items()
            if parameter is not None
        }
        return class_name(unwrap(model)), found

    def said_to_be_tied(self, model: torch.nn.Module) -> list[tuple[Any, Any]]:
        """As transformers' models do, which are loaded and saved by it; only what is whole on this rank."""
        pairs: list[tuple[Any, Any]] = []
        for _, module in walk(model):
            said, config = vars(module).get(_SAID_TIES), vars(module).get("config")
            if isinstance(said, dict) and said and getattr(config, "tie_word_embeddings", True):
                named = dict(module.named_parameters(remove_duplicate=False))
                names = [(a, b) for a, b in cast("dict[Any, Any]", said).items() if a in named and b in named]
                pairs += [(named[a], named[b]) for a, b in names if not hasattr(named[a], "to_local")]
        return pairs

    def flags(self, model: torch.nn.Module) -> Mapping[str, bool]:
        """All but the mode, which changes in a run."""
        return {
            f"{name}.{key}": value
            for name, module in walk(model)
            for each in (module, vars(module).get("config"))
            for key, value in getattr(each, "__dict__", {}).items()
            if isinstance(value, bool) and key != "training"
        }

    def owner(self, roots: Sequence[torch.nn.Module], parameter: Tensor) -> torch.nn.Module | None:
        """Also where it stands in for one that is sharded."""
        modules = (module for root in roots for module in root.modules())
        return next((m for m in modules if any(p is parameter for p in m._parameters.values())), None)

    def times_nothing(self, roots: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Tensor]:
        """Read off the graph of the losses."""
        ends = [(p, torch.autograd.graph.get_gradient_edge(p).node) for p in parameters if p.requires_grad]
        by_all, by_some = (reached(roots, by_all=each) for each in (True, False)) if ends else (set(), set())
        return [p for p, end in ends if end in by_all and end not in by_some]

    def is_merged(self, roots: Sequence[torch.nn.Module], parameter: Tensor) -> bool:
        """As layers of peft say: who merges can unmerge, and does not call its adapters meanwhile."""
        modules = (m for root in roots for m in root.modules() if m.training and callable(getattr(m, "unmerge", None)))
        merged = (m for m in modules if getattr(m, "merged", False) is True)
        return any(p is parameter for m in merged for p in m.parameters())

    def has_copies(self, parameters: Sequence[Tensor]) -> bool:
        """FSDP1's flat parameters."""
        return any(map(is_flat, parameters))

    def is_tensor(self, value: object) -> bool:
        """Of torch."""
        return isinstance(value, Tensor)

    def is_low(self, value: object) -> bool:
        """float16, bfloat16 or float8."""
        return grid.is_low(value)

    def name_of(self, dtype: torch.dtype) -> str:
        """Without "torch."."""
        return grid.name_of(dtype)

    def deferred(self) -> Deferred:
        """Read from devices together."""
        return Deferred(self._ride)

    def number(self, value: Any) -> float | None:
        """Waits for no device that has been waited for since it was written."""
        return number_of(value)
