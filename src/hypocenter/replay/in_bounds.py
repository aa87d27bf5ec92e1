"""What is done again with other inputs must not cost the program its device.

On a CPU an index out of bounds is an exception, and the replay is given up. A kernel of an accelerator asserts instead:
from then on the process has no device, and the run is over. So before such a kernel is called its indices are looked at
here, which waits for the device, and an exception is raised where a CPU would raise one. The same for values that a
kernel asserts about: probabilities, and targets of a binary cross-entropy.

cuDNN keeps the random state of its dropout between layers of an LSTM or GRU in a buffer of its own, which no generator
tells of: a forward that is done again would move it on, and the run would draw other masks than without us. What is
done again is given a copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.tap.dispatch import Mode, declared
from hypocenter.tap.tape import Event

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_HOST = ("cpu", "meta")
_OWN = frozenset({"aten", "prims", "higher_order", "prim", "profiler", "_c10d_functional", "c10d"})


class OutOfBounds(IndexError):
    """Raised for an index or number that a CPU would have refused."""


class InBounds(Mode):
    """Refuse calls whose kernel would assert on a device, inside this block."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        packet = getattr(getattr(func, "overloadpacket", None), "__name__", "")
        if getattr(func, "namespace", "higher_order") not in _OWN:
            _refuse_foreign(func, args, kwargs)
        elif packet in _CHECKS:
            _CHECKS[packet](_Given(func, args, kwargs))
        elif packet == "_cudnn_rnn":
            args, kwargs = _with_own_dropout(func, args, kwargs)
        return func(*args, **kwargs)


def kept_in_bounds(
    events: Sequence[Event], parts: Iterable[nn.Module], *, is_changed: bool
) -> contextlib.AbstractContextManager[Any]:
    """Return a context for calls that are done again; it does nothing if all is on a CPU, or nothing is changed.

    Args:
        events: the calls.
        parts: the modules that are called, and all that are inside them.
        is_changed: they are given other inputs, or other code, than in the run.
    """
    is_needed = (is_changed or draws_out_of_sight(parts)) and any(_is_on_device(event) for event in events)
    return InBounds() if is_needed else contextlib.nullcontext()


def draws_out_of_sight(parts: Iterable[nn.Module]) -> bool:
    """Return whether one may draw from cuDNN's own random state: a recurrent one with dropout, on a GPU."""
    return any(
        part.dropout and part.num_layers > 1 and any(p.device.type == "cuda" for p in part.parameters())
        for part in parts
        if isinstance(part, nn.RNNBase)
    )


def _is_on_device(event: Event) -> bool:
    given = [each.tensor for each in event.externals]
    given += [] if event.module is None else [*event.module.parameters()]
    return any(tensor.device.type not in _HOST for tensor in given)


class _Given:
    """The arguments of a call, by the names of its schema."""

    def __init__(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        names = [each.name for each in declared(func)]
        self.by_name = {**dict(zip(names, args, strict=False)), **kwargs}

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors among the arguments, those in lists too."""
        flat = (each for value in self.by_name.values() for each in (value if isinstance(value, list) else [value]))
        return [each for each in flat if isinstance(each, Tensor)]

    def tensor(self, *names: str) -> Tensor | None:
        """Return the first argument of these names that is a plain tensor with elements; None if there is none."""
        for name in names:
            value = self.by_name.get(name)
            if isinstance(value, Tensor) and type(value) in (Tensor, nn.Parameter) and value.numel():
                return value
        return None

    def number(self, name: str, default: int) -> int:
        """Return an argument as a whole number."""
        value = self.by_name.get(name, default)
        return default if value is None else int(value)


def _within(indices: Tensor | None, low: int, high: int, but: int | None = None) -> None:
    """Raise OutOfBounds if an index is not in [low, high); indices equal to `but` may be anything."""
    if indices is None or indices.dtype not in _WHOLE:
        return
    least, most = torch.aminmax(indices if but is None else torch.where(indices == but, low, indices))
    first, last = torch.stack([least, most]).tolist()
    if first < low or last >= high:
        raise OutOfBounds(f"index {first if first < low else last} is out of bounds for a size of {high}")


def _sized(tensor: Tensor | None, dim: int) -> int | None:
    if tensor is None:
        return None
    return tensor.shape[dim] if tensor.dim() else 1


def _rows(table: str, indices: str) -> Callable[[_Given], None]:
    """Return a check that indices are rows of a table."""

    def check(given: _Given) -> None:
        if (n := _sized(given.tensor(table), 0)) is not None:
            _within(given.tensor(indices), 0, n)

    return check


def _along_dim(given: _Given) -> None:
    """Check that `index` holds places along `dim`; gather and scatter take none from the end."""
    own = given.tensor("self", "input")
    if own is not None and (n := _sized(own, given.number("dim", 0))) is not None:
        _within(given.tensor("index"), 0, n)


def _advanced(given: _Given) -> None:
    """Check the indices of x[i, j]: each along a dimension of its own, from the end too."""
    own, indices = given.tensor("self"), given.by_name.get("indices")
    if own is None or indices is None:
        return
    dim = 0
    for each in indices:
        if isinstance(each, Tensor) and each.dtype in (torch.bool, torch.uint8):
            dim += each.dim()
            continue
        if isinstance(each, Tensor) and type(each) is Tensor and each.numel() and dim < own.dim():
            _within(each, -own.shape[dim], own.shape[dim])
        dim += 1


def _flat(given: _Given) -> None:
    if (own := given.tensor("self")) is not None:
        _within(given.tensor("index"), -own.numel(), own.numel())


def _classes(given: _Given) -> None:
    """Check that the targets of a negative log-likelihood are classes."""
    own = given.tensor("self")
    if own is not None:
        n = own.shape[1 if own.dim() > 1 else 0]
        _within(given.tensor("target"), 0, n, but=given.number("ignore_index", -100))


def _targets(given: _Given) -> None:
    if (own := given.tensor("self")) is not None:
        _within(given.tensor("target"), -1, own.shape[-1])


def _probabilities(given: _Given) -> None:
    own = given.tensor("self")
    if own is not None and own.is_floating_point() and not bool((own.isfinite() & (own >= 0)).all()):
        raise OutOfBounds("a probability is negative, or not finite")


def _shares(given: _Given) -> None:
    own = given.tensor("p") if "p" in given.by_name else given.tensor("self")
    if own is not None and own.is_floating_point() and not bool(((own >= 0) & (own <= 1)).all()):
        raise OutOfBounds("a probability is not between 0 and 1")


def _not_negative(given: _Given) -> None:
    own = given.tensor("repeats") if "repeats" in given.by_name else given.tensor("self")
    if own is not None and bool((own < 0).any()):
        raise OutOfBounds("a count is negative")


def _holds(given: _Given) -> None:
    own = given.tensor("self")
    if own is not None and not bool(own.all()):
        raise OutOfBounds("what the program asserts does not hold")


_BY_DIMENSION = (
    "index_select", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_",
    "index_reduce", "index_reduce_", "gather", "scatter", "scatter_", "scatter_add", "scatter_add_",
    "scatter_reduce", "scatter_reduce_",
)  # fmt: skip
_CHECKS: dict[str, Callable[[_Given], None]] = {
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"), _advanced),
    **dict.fromkeys(_BY_DIMENSION, _along_dim),
    "embedding": _rows("weight", "indices"),
    "embedding_renorm_": _rows("self", "indices"),
    "_embedding_bag": _rows("weight", "indices"),
    "_embedding_bag_forward_only": _rows("weight", "indices"),
    "take": _flat, "put": _flat, "put_": _flat,
    "nll_loss_forward": _classes, "nll_loss2d_forward": _classes,
    "multi_margin_loss": _classes, "multilabel_margin_loss_forward": _targets,
    "multinomial": _probabilities, "bernoulli": _shares, "binary_cross_entropy": _shares,
    "repeat_interleave": _not_negative, "bincount": _not_negative,
    "_assert_async": _holds,
}  # fmt: skip


def _refuse_foreign(func: Any, args: Any, kwargs: Any) -> None:
    """Refuse an operator of another package that is given whole numbers on a device: nobody knows what they may be."""
    found = _Given(func, args, kwargs).tensors
    if any(each.dtype in _WHOLE and each.device.type not in _HOST for each in found):
        raise ReplayImpossible(f"{func} may read out of bounds when it is given other numbers")


def _with_own_dropout(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments with another buffer for the random state of dropout."""
    names = [each.name for each in declared(func)]
    at = names.index("dropout_state") if "dropout_state" in names else -1
    if 0 <= at < len(args) and isinstance(args[at], Tensor):
        return (*args[:at], args[at].clone(), *args[at + 1 :]), kwargs
    state = kwargs.get("dropout_state")
    return args, ({**kwargs, "dropout_state": state.clone()} if isinstance(state, Tensor) else kwargs)
