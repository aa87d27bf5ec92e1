"""The user's own names of modules, parameters and buffers: without wrappers' prefixes, all names of what is shared."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from hypocenter.tap.flat_parameters import is_flat, originals
from hypocenter.tap.numbering import has_numbered_layers, offset_of
from hypocenter.tap.weakly import Ref

_WRAPPERS: dict[tuple[str, str], str] = {
    ("torch", "OptimizedModule"): "_orig_mod",
    ("torch", "DistributedDataParallel"): "module",
    ("torch", "DataParallel"): "module",
    ("torch", "FullyShardedDataParallel"): "_fsdp_wrapped_module",
    ("torch", "ActivationWrapper"): "_checkpoint_wrapped_module",  # CheckpointWrapper and OffloadWrapper derive from it
    ("torch", "CheckpointWrapper"): "_checkpoint_wrapped_module",
    ("deepspeed", "DeepSpeedEngine"): "module",
    ("megatron", "DistributedDataParallel"): "module",
    ("megatron", "FullyShardedDataParallel"): "module",
    ("megatron", "TorchFullyShardedDataParallel"): "module",
    ("megatron", "Float16Module"): "module",
    ("lightning", "_FabricModule"): "_forward_module",
    ("lightning_fabric", "_FabricModule"): "_forward_module",
}
"""(top package, class in the MRO) -> the attribute that holds the user's module."""

_UNMISTAKABLE = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_MAX_NAMES = 64  # of one shared module; a diamond of shared containers has exponentially many paths
_MAX_UNKNOWN = 4096  # remembered strangers; modules made anew in every forward would pile up

_attribute_of: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()


def wrapped_attribute(module: nn.Module) -> str:
    """Return the attribute under which a wrapper holds the user's module; "" if the module is no wrapper."""
    kind = type(module)
    name = _attribute_of.get(kind)
    if name is None:
        keys = ((base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__)
        name = next((_WRAPPERS[key] for key in keys if key in _WRAPPERS), "")
        _attribute_of[kind] = name
    return name if name in module._modules else ""


def child_of(module: nn.Module, name: str) -> nn.Module | None:
    """Return the child of this name, or None. A ScriptModule's children are in a mapping without `get`."""
    return module._modules[name] if name in module._modules else None  # noqa: SIM401


def unwrap(module: nn.Module) -> nn.Module:
    """Return the user's module inside any number of wrappers; the module itself if it is none."""
    for _ in range(16):  # a wrapper that wraps itself would be an endless loop
        inner = child_of(module, wrapped_attribute(module))
        if inner is None:
            break
        module = inner
    return module


def class_name(module: nn.Module) -> str:
    """Return the user's class name: FSDP2 swaps `Net` for a made-up `FSDPNet`."""
    kind = type(module)
    swapped = kind.__name__.startswith("FSDP") and any(base.__name__ == "FSDPModule" for base in kind.__bases__)
    return kind.__name__[len("FSDP") :] if swapped else kind.__name__


def strip(name: str, root: nn.Module | None = None) -> str:
    """Take wrappers' prefixes off a dotted name of `root.named_parameters()` or the like.

    With `root` each part is checked against the module it names, so that a user's own submodule called `module` stays.
    Without, only prefixes that nobody else uses are taken off.
    """
    kept: list[str] = []
    module = root
    for part in name.split("."):
        is_wrapper = wrapped_attribute(module) == part if module is not None else False
        if not is_wrapper and part not in _UNMISTAKABLE:
            kept.append(part)
        module = child_of(module, part) if module is not None else None
    return ".".join(kept)


@dataclass(slots=True)
class _Root:
    module: weakref.ref[nn.Module]
    prefix: str | None  # None: chosen by us
    variable: str = ""  # that holds it in the user's code, for when there are several
    is_part: bool = False  # of one model that is spread over ranks: a stage of a pipeline


@dataclass(slots=True)
class _Names:
    """One thing's names, and the thing itself, so that a reused id is noticed."""

    thing: weakref.ref[nn.Module | Tensor]
    names: tuple[str, ...]


class NameMap:
    """Names of everything below one or several roots; what is added to them later is seen.

    Holds weak references only. `generation` grows whenever the name of a module may have become another.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._roots: list[_Root] = []
        self._modules: dict[int, _Names] = {}
        self._params: dict[int, _Names] = {}
        self._buffers: dict[int, _Names] = {}
        self._originals: dict[int, _Names] = {}  # of FSDP1's flat parameters
        self._layout: list[tuple[weakref.ref[nn.Module], tuple[int, ...]]] = []
        self._unknown: dict[int, weakref.ref[nn.Module | Tensor]] = {}
        self._alone: list[_Names] = []  # parameters that belong to no module
        self._is_stale = False
        self._undo: Callable[[], object] | None = None

    def add_root(
        self, module: nn.Module, prefix: str | None = None, *, is_part: bool = False, variable: str = ""
    ) -> None:
        """Name a model and everything in it. A part of a known root, or a known root again, changes nothing.

        Args:
            prefix: in front of all its names; when not given it is "" for the only root that holds parameters, and
                for each of several the variable that holds it (`netD`), or the class name (`Net`, `Net#2`).
            is_part: it is a stage of a pipeline, and its names are those of the whole model: no prefix, however many
                stages there are. Stages of Megatron-Core are known by the numbers of their layers.
            variable: that holds it in the user's code, "" if that is not known.
        """
        self._watch_registrations()
        self._refresh_if_stale()
        if is_part:
            self._mark_part(module)
        if _find(self._modules, module) is not None:
            return
        inside = {id(m) for m in module.modules()}
        kept: list[_Root] = []
        for root in self._roots:
            known = root.module()
            if known is not None and id(known) not in inside:
                kept.append(root)
            elif known is not None and unwrap(known) is unwrap(module):
                prefix, variable = prefix or root.prefix, root.variable or variable  # the same model, wrapped meanwhile
        self._roots = [*kept, _Root(Ref(module), prefix or None, variable, is_part)]
        self._invalidate()

    def variables(self) -> frozenset[str]:
        """Return the variables that hold the roots so far: no other model is to get such a name."""
        return frozenset(root.variable for root in self._roots)

    def add_tensor(self, tensor: Tensor, name: str) -> None:
        """Name a parameter that belongs to no module."""
        self._alone = [entry for entry in self._alone if entry.thing() is not None]
        taken = {entry.names[0] for entry in self._alone}
        n = 2
        while (unique := name if name not in taken else f"{name}#{n}") in taken:
            n += 1
        self._alone.append(_Names(Ref(tensor), (unique,)))
        self._is_stale = True

    def modules(self) -> list[tuple[str, nn.Module]]:
        """Return (first name, module) of everything below the roots, in the models' own order."""
        self._refresh_if_moved()
        live = [(entry.names[0], entry.thing()) for entry in self._modules.values()]
        return [(name, module) for name, module in live if isinstance(module, nn.Module)]

    def _mark_part(self, module: nn.Module) -> None:
        for root in self._roots:
            if not root.is_part and root.module() is module:
                root.is_part = True
                self._invalidate()

    def roots(self) -> list[nn.Module]:
        """Return the roots that are alive, not unwrapped."""
        return [module for root in self._roots if (module := root.module()) is not None]

    def close(self) -> None:
        """Stop watching for new modules."""
        if self._undo is not None:
            self._undo()
            self._undo = None

    def module_name(self, module: nn.Module) -> str | None:
        """Return a module's first name: "" for a root, None outside all; a wrapper's is that of what it wraps."""
        return _first(self.module_names(module))

    def module_names(self, module: nn.Module) -> tuple[str, ...]:
        """Return all names of a module that is used at several places, in the model's own order."""
        return self._look_up("_modules", module)

    def param_name(self, param: Tensor) -> str | None:
        """Return the first name of a parameter; None when it belongs to no root."""
        return _first(self.param_names(param))

    def param_names(self, param: Tensor) -> tuple[str, ...]:
        """Return all names of a (tied) parameter, also of one that lies in a flat parameter of FSDP1."""
        return self._look_up("_originals" if id(param) in self._originals else "_params", param)

    def buffer_name(self, buffer: Tensor) -> str | None:
        """Return the first name of a buffer; None when it belongs to no root."""
        return _first(self._look_up("_buffers", buffer))

    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return what `named_parameters()` of the unwrapped models gives: each once, under its first name."""
        self._refresh_if_moved()
        live = [(entry.names[0], entry.thing()) for entry in self._params.values()]
        return [(name, param) for name, param in live if isinstance(param, Tensor)]  # type: ignore[misc]

    def buffers(self) -> list[tuple[str, Tensor]]:
        """Return what `named_buffers()` of the unwrapped models gives."""
        self._refresh_if_moved()
        live = [(entry.names[0], entry.thing()) for entry in self._buffers.values()]
        return [(name, buffer) for name, buffer in live if isinstance(buffer, Tensor)]

    def _look_up(self, table: str, thing: nn.Module | Tensor) -> tuple[str, ...]:
        self._refresh_if_stale()
        found = _find(getattr(self, table), thing)
        if found is None and not ((ref := self._unknown.get(id(thing))) is not None and ref() is thing):
            self._refresh_if_moved()
            found = _find(getattr(self, table), thing)
            if found is None:
                self._remember_unknown(thing)
        return found.names if found is not None else ()

    def _remember_unknown(self, thing: nn.Module | Tensor) -> None:
        if len(self._unknown) > _MAX_UNKNOWN:
            self._unknown.clear()
        self._unknown[id(thing)] = Ref(thing)

    def _invalidate(self) -> None:
        self._is_stale = True
        self.generation += 1

    def _refresh_if_moved(self) -> None:
        """Refresh the names also after changes that no registration hook tells: `.to()`, `del model.layer`."""
        self._refresh_if_stale()
        if any((module := ref()) is None or _layout_of(module) != layout for ref, layout in self._layout):
            self._invalidate()
            self._refresh_if_stale()

    def _refresh_if_stale(self) -> None:
        if not self._is_stale:
            return
        self._is_stale = False
        self._modules, self._params, self._buffers, self._originals, self._layout = {}, {}, {}, {}, []
        self._unknown.clear()
        for prefix, module in self._prefixed():
            self._name_all(module, prefix)
        for entry in self._alone:
            if (tensor := entry.thing()) is not None and id(tensor) not in self._params:
                self._params[id(tensor)] = entry

    def _prefixed(self) -> Iterator[tuple[str, nn.Module]]:
        roots = [(root, module) for root in self._roots if (module := root.module()) is not None]
        n_holding = sum(_holds_parameters(module) for _, module in roots)
        parts = _chunks([module for _, module in roots])
        taken: dict[str, int] = {}
        for root, module in roots:
            if root.prefix is None and (root.is_part or id(module) in parts):
                yield "", module
                continue
            is_only = len(roots) == 1 or (n_holding == 1 and _holds_parameters(module))
            base = (
                root.prefix
                if root.prefix is not None
                else ""
                if is_only
                else root.variable or class_name(unwrap(module))
            )
            taken[base] = taken.get(base, 0) + 1
            yield (base if taken[base] == 1 else f"{base}#{taken[base]}"), module

    def _name_all(self, root: nn.Module, prefix: str) -> None:
        for name, module in walk(root, prefix):
            if _add(self._modules, module, name):
                self._layout.append((Ref(module), _layout_of(module)))
            dot = f"{name}." if name else ""
            for table, things in ((self._params, module._parameters), (self._buffers, module._buffers)):
                for key, thing in things.items():
                    if thing is not None:
                        _add(table, thing, dot + key)
            for flat in module._parameters.values():
                for key, original in originals(flat) if flat is not None and is_flat(flat) else ():
                    _add(self._originals, original, dot + strip(key))

    def _watch_registrations(self) -> None:
        if self._undo is not None:
            return
        me = Ref(self)

        def on_module(module: nn.Module, name: str, thing: object) -> None:
            if (names := me()) is not None and _find(names._modules, module) is not None:
                names._invalidate()

        def on_tensor(module: nn.Module, name: str, thing: object) -> None:
            if (names := me()) is not None and thing is not None and _find(names._modules, module) is not None:
                names._is_stale = True  # no module's name has changed: `generation` stays

        handles = [
            torch_module.register_module_module_registration_hook(on_module),
            torch_module.register_module_parameter_registration_hook(on_tensor),
            torch_module.register_module_buffer_registration_hook(on_tensor),
        ]
        self._undo = weakref.finalize(self, lambda: [handle.remove() for handle in handles])


def walk(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) as `named_modules()` does, shared ones once per name; wrappers add nothing to names."""
    yield from _walk(module, name, set(), {})


def _walk(module: nn.Module, name: str, above: set[int], n_names: dict[int, int]) -> Iterator[tuple[str, nn.Module]]:
    n_names[id(module)] = n_names.get(id(module), 0) + 1
    if id(module) in above or n_names[id(module)] > _MAX_NAMES:
        return
    yield name, module
    above.add(id(module))
    wrapped, offset = wrapped_attribute(module), offset_of(module)
    for key, child in module._modules.items():
        if child is not None:
            shown = str(int(key) + offset) if offset else key
            path = name if key == wrapped else f"{name}.{shown}" if name else shown
            yield from _walk(child, path, above, n_names)
    above.discard(id(module))


def _add(table: dict[int, _Names], thing: nn.Module | Tensor, name: str) -> bool:
    entry = table.get(id(thing))
    if entry is None:
        table[id(thing)] = _Names(Ref(thing), (name,))
        return True
    if name not in entry.names:
        entry.names += (name,)
    return False


def _find(table: dict[int, _Names], thing: nn.Module | Tensor) -> _Names | None:
    entry = table.get(id(thing))
    return entry if entry is not None and entry.thing() is thing else None


def _first(names: tuple[str, ...]) -> str | None:
    return names[0] if names else None


def _layout_of(module: nn.Module) -> tuple[int, ...]:
    return tuple(map(id, (*module._modules.values(), *module._parameters.values(), *module._buffers.values())))


def _chunks(roots: Sequence[nn.Module]) -> set[int]:
    """Return ids of roots that are pieces of one model: same class, numbered layers, different parameter names."""
    if len(roots) < 2 or len({class_name(unwrap(root)) for root in roots}) > 1:
        return set()
    if not all(has_numbered_layers(root) for root in roots):
        return set()
    names = [{f"{name}.{key}" for name, module in walk(root) for key in module._parameters} for root in roots]
    is_disjoint = len(set().union(*names)) == sum(map(len, names))
    return {id(root) for root in roots} if is_disjoint else set()


def _holds_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
