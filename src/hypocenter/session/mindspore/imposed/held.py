"""Parameters and buffers of a model, with their names: what weights are put into, and what is saved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.compare.weights.imposing import Wanted
from hypocenter.session.imposed.heads import heads_in
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.summary.reducers.mindspore_values import dtype_name
from hypocenter.tap.mindspore.names import NameMap, own_parameters, unwrap, walk

_SPLIT = ("semi_auto_parallel", "auto_parallel")
_STATISTICS = ("moving_mean", "moving_variance")  # Parameters in MindSpore, buffers elsewhere: not trained


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A Parameter of a model. `is_trained`: False of running statistics."""

    names: tuple[str, ...]
    parameter: Any
    is_trained: bool

    @property
    def wanted(self) -> Wanted:
        """The Parameter as `weights` looks for it: names, shape and format."""
        return Wanted(names=self.names, shape=tuple(self.parameter.shape), dtype=dtype_name(self.parameter))


def held_by(root: Any, names: NameMap, option: str) -> list[Held]:
    """Return every Parameter of a model, once.

    Args:
        option: that asks, for errors.

    Raises:
        ImposeError: MindSpore splits them over devices, and what of them is here is not known.
    """
    mode = ms.get_auto_parallel_context("parallel_mode")
    if mode in _SPLIT:
        raise ImposeError(
            "how the parameters lie on this rank is not known", where=option, why=f"parallel mode {mode} splits them",
            fix="run on one device, or data-parallel",
        )  # fmt: skip
    found: dict[int, Held] = {}
    for _, cell in walk(root):
        for key, parameter in own_parameters(cell).items():
            if parameter is None or id(parameter) in found:
                continue
            known = names.param_names(parameter) or (str(parameter.name),)
            is_trained = parameter.requires_grad or key not in _STATISTICS
            found[id(parameter)] = Held(names=known, parameter=parameter, is_trained=is_trained)
    return list(found.values())


def buffers_of(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield the buffers that belong to a model's state, by name. MindSpore has buffers from 2.6 on."""
    for name, cell in walk(root):
        own = getattr(cell, "_buffers", None)
        left_out = getattr(cell, "_non_persistent_buffers_set", None) or ()
        for key, buffer in own.items() if isinstance(own, dict) else ():
            if isinstance(buffer, ms.Tensor) and key not in left_out:
                yield (f"{name}.{key}" if name else key), buffer


def heads_of(root: Any) -> dict[str, int]:
    """Return heads and groups as the model's own configuration has them; empty when it does not tell."""
    return heads_in(getattr(unwrap(root), "config", None))
