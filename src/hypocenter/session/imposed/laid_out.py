"""How a parameter of the program lies over the ranks: what of the whole tensor is here, or why that is not known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hypocenter.nouns import Place
from hypocenter.session.imposed.heads import heads_in
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.tap.flat_parameters import is_flat
from hypocenter.tap.names import NameMap, unwrap
from hypocenter.tap.placement import Wrappers
from hypocenter.tap.spread.parameters import SpreadOfParameters
from hypocenter.tap.spread.where import local_shape, offset_of_dtensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A parameter as it is here. `offset`: of the part here in a tensor of `shape`; None: all of it is here."""

    names: tuple[str, ...]
    parameter: Tensor
    shape: tuple[int, ...]
    offset: tuple[int, ...] | None = None

    @property
    def local(self) -> Tensor:
        """The values on this rank, to read or to write."""
        here: Any = self.parameter
        return (here.to_local() if hasattr(here, "to_local") else here).detach()

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """First and last + 1 index of the part here, along every dimension."""
        offset = self.offset or (0,) * len(self.shape)
        return tuple((start, start + n) for start, n in zip(offset, self.local.shape, strict=True))

    @property
    def dtype(self) -> str:
        """The format, named as in Reading.dtype."""
        return str(self.parameter.dtype).removeprefix("torch.")


class LaidOut:
    """Parameters of a model with their places among the ranks."""

    def __init__(self, names: NameMap, place: Callable[[], Place]) -> None:
        self._names, self._wrappers, self._place = names, Wrappers(), place
        self._spread = SpreadOfParameters(names, self._wrappers, place)

    def attach(self) -> Callable[[], None]:
        """Watch for data-parallel wrappers as they are made; returns the undo."""
        return self._wrappers.attach()

    @property
    def is_stage(self) -> bool:
        """Whether the models here are parts of a pipeline."""
        return len(self._place().groups.get("pp", ())) > 1

    def root_of(self, module: nn.Module) -> nn.Module:
        """Return the model that a module belongs to; the module itself where no model that is known has it."""
        inside = [root for root in self._names.roots() if any(each is module for each in root.modules())]
        return inside[-1] if inside else module

    def parameters(self, root: nn.Module, option: str) -> Iterator[Held]:
        """Yield every parameter of a model with its place.

        Args:
            option: that asks, for errors.

        Raises:
            ImposeError: one lies in a way that tells not which of its elements are here.
        """
        placements = self._spread.placements() if self._spread.is_on else None
        seen: set[int] = set()
        for parameter in root.parameters():
            names = self._names.param_names(parameter)
            if id(parameter) in seen or not names:
                continue
            seen.add(id(parameter))
            yield self._held(names, parameter, placements, option)

    def _held(self, names: tuple[str, ...], parameter: Any, placements: Any, option: str) -> Held:
        if is_flat(parameter):
            raise _unknown(names[0], option, "FSDP keeps it in a flat parameter", "use FSDP2 (fully_shard), or DDP")
        if hasattr(parameter, "ds_shape"):
            raise _unknown(names[0], option, "DeepSpeed ZeRO 3 holds it in parts, between uses only", "use ZeRO 1 or 2")
        if parameter.is_meta:
            raise _unknown(names[0], option, "it has no values yet (meta device)", "materialize the model first")
        if hasattr(parameter, "placements"):
            shape = tuple(parameter.shape)
            if local_shape(parameter) == shape:
                return Held(names=names, parameter=parameter, shape=shape)
            offset = offset_of_dtensor(parameter)
            if offset is None:
                raise _unknown(names[0], option, "this version of torch does not tell where a shard starts", "")
            return Held(names=names, parameter=parameter, shape=shape, offset=offset)
        if placements is not None:
            where = self._spread.of(placements, names[0], parameter, parameter, "param")
            if "=V" in where.placement:
                why = f"it lies as {where.placement}: other ranks hold other ones under the same name (experts)"
                raise _unknown(names[0], option, why, "run without expert parallelism")
            if where.is_part and where.offset is None:
                why = f"it lies as {where.placement}, and which elements are here is not known"
                raise _unknown(names[0], option, why, "run on fewer ranks, or without this kind of sharding")
            if where.is_part:
                return Held(names=names, parameter=parameter, shape=where.shape, offset=where.offset)
        return Held(names=names, parameter=parameter, shape=tuple(parameter.shape))


def buffers_of(root: nn.Module, names: NameMap) -> dict[str, Tensor]:
    """Return the buffers that belong to a model's state, by name."""
    found: dict[str, Tensor] = {}
    for module in root.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set and not buffer.is_meta:
                name = names.buffer_name(buffer)
                if name:
                    found[name] = buffer
    return found


def heads_of(root: nn.Module) -> dict[str, int]:
    """Return heads and groups as the model's own configuration has them; empty when it does not tell."""
    return heads_in(getattr(unwrap(root), "config", None))


def _unknown(name: str, option: str, why: str, fix: str) -> ImposeError:
    return ImposeError(f"how {name!r} lies on this rank is not known", where=option, why=why, fix=fix)
