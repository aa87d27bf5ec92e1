"""Every module below the known roots: its own tensors, without values, and what its maker has set on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hypocenter.record.facts_file import ModuleFacts, TensorFacts
from hypocenter.session.facts.plain import members, place_of
from hypocenter.session.facts.settings_of import take_settings
from hypocenter.tap.flat_parameters import is_flat, originals
from hypocenter.tap.names import NameMap, class_name, wrapped_attribute


def module_facts(names: NameMap, *, tp: int = 1) -> tuple[ModuleFacts, ...]:
    """All modules in the models' own order, under their first names; wrappers are left out.

    Args:
        tp: ranks that share a parameter which Megatron marks as split: shapes are those of the whole.
    """
    flat = _FlatShapes(names)
    seen_configs: set[int] = set()
    found: list[ModuleFacts] = []
    for path, module in names.modules():
        if wrapped_attribute(module):
            continue
        attributes, functions = take_settings(members(module), seen_configs)
        attributes.update({key: None for key, value in module._parameters.items() if value is None})
        found.append(
            ModuleFacts(
                path=path,
                kind=class_name(module),
                where=_where(module),
                parameters={**_tensors(module._parameters, flat, tp), **flat.below(path)},
                buffers=_tensors(module._buffers, flat, tp),
                attributes=attributes,
                functions=functions,
                training=bool(members(module).get("training", True)),
            )
        )
    return tuple(found)


def _where(module: nn.Module) -> str:
    """Of the class: what accelerate and others put over `forward` of one module is not what its author wrote."""
    for kind in type(module).__mro__:
        if "forward" in vars(kind):
            return "" if kind is nn.Module else place_of(vars(kind)["forward"])
    return ""


def _tensors(things: Mapping[str, Tensor | None], flat: _FlatShapes, tp: int) -> dict[str, TensorFacts]:
    return {
        key: TensorFacts(
            shape=flat.shape_of(thing) or _logical_shape(thing, tp), dtype=_dtype(thing), trained=thing.requires_grad
        )
        for key, thing in things.items()
        if thing is not None and not is_flat(thing)
    }


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _logical_shape(tensor: Tensor, tp: int) -> tuple[int, ...]:
    """Of the whole tensor: a DTensor says so itself, ZeRO-3 and Megatron leave a mark."""
    marks = members(tensor)
    whole = marks.get("ds_shape")
    shape = list(whole if whole is not None else tensor.shape)
    dim = marks.get("partition_dim")
    if marks.get("tensor_model_parallel") is True and type(dim) is int and 0 <= dim < len(shape):
        shape[dim] *= tp
    return tuple(int(size) for size in shape)


class _FlatShapes:
    """FSDP1 keeps parameters flattened: what they are for the user is written on the flat one."""

    def __init__(self, names: NameMap) -> None:
        self._shapes: dict[int, tuple[int, ...]] = {}
        self._below: dict[str, dict[str, TensorFacts]] = {}
        for root in names.roots():
            for module in root.modules():
                self._note(names, members(module).get("_handle"))

    def _note(self, names: NameMap, handle: Any) -> None:
        flat = members(handle).get("flat_param") if handle is not None else None
        if not isinstance(flat, Tensor):
            return
        shapes, params = members(flat).get("_shapes", ()), members(flat).get("_params")
        if params is not None:  # use_orig_params: views, which hold only what is on this rank
            self._shapes.update({id(p): tuple(shape) for p, shape in zip(params, shapes, strict=True)})
        elif is_flat(flat):
            for _, original in originals(flat):
                name = (names.param_names(original) or ("",))[0]
                owner, _, key = name.rpartition(".")
                fact = TensorFacts(shape=tuple(original.shape), dtype=_dtype(flat), trained=flat.requires_grad)
                self._below.setdefault(owner, {})[key] = fact

    def shape_of(self, tensor: Tensor) -> tuple[int, ...]:
        """The user's shape of a view into a flat parameter; () of another tensor."""
        return self._shapes.get(id(tensor), ())

    def below(self, path: str) -> dict[str, TensorFacts]:
        """Parameters of the module at this path that lie in a flat one."""
        return self._below.get(path, {})
