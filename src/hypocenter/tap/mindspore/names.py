"""The user's own names of cells and parameters: attribute paths from the model down, without MindSpore's wrappers.

MindSpore names parameters itself, by path, when a cell gets its children; a user may rename them, and a cell made with
`auto_prefix=False` leaves its own part out. So paths are walked here, and `Parameter.name` is kept as a second name
where it is another.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mindspore import nn  # pyright: ignore[reportMissingImports]

_WRAPPERS: dict[str, tuple[str, ...]] = {
    "TrainOneStepCell": ("network",),
    "TrainOneStepWithLossScaleCell": ("network",),
    "_TrainGradAccuStepCell": ("network",),
    "_TrainGradAccuWithLossScaleCell": ("network",),
    "ForwardValueAndGrad": ("network",),
    "GradAccumulationCell": ("network",),
    "PipelineCell": ("network",),
    "MicroBatchInterleaved": ("network",),
    "WithGradCell": ("network",),
    "WithLossCell": ("_backbone",),
    "WithEvalCell": ("_network",),
    "_VirtualDatasetCell": ("_backbone",),
    "_OutputTo32": ("_op", "network"),
    "_OutputTo16": ("_op", "network"),
    "BoostTrainOneStepCell": ("network",),
}
"""Class of MindSpore's own that holds the user's model -> the attributes it may be under."""

_MAX_UNKNOWN = 4096


def unwrap(cell: Any) -> Any:
    """Return the user's model inside any number of MindSpore's wrappers; the cell itself if it is none."""
    for _ in range(16):  # a wrapper that wraps itself would be an endless loop
        inner = wrapped(cell)
        if inner is None:
            break
        cell = inner
    return cell


def wrapped(cell: Any) -> Any:
    """Return what a wrapper of MindSpore's holds; None of any other cell."""
    for kind in type(cell).__mro__:
        if kind.__module__.startswith("mindspore.") and kind.__name__ in _WRAPPERS:
            held = children(cell)
            return next((held[name] for name in _WRAPPERS[kind.__name__] if held.get(name) is not None), None)
    return None


def children(cell: Any) -> dict[str, Any]:
    """Return the cells set on a cell, by attribute."""
    found = getattr(cell, "_cells", None)
    return found if isinstance(found, dict) else {}


def own_parameters(cell: Any) -> dict[str, Any]:
    """Return the parameters set on a cell itself, by attribute."""
    found = getattr(cell, "_params", None)
    return found if isinstance(found, dict) else {}


def walk(cell: Any, name: str = "", seen: frozenset[int] = frozenset()) -> Iterator[tuple[str, Any]]:
    """Yield (path, cell) of a cell and all below it, in its own order; what is used twice comes twice."""
    cell = unwrap(cell)
    if id(cell) in seen:
        return
    yield name, cell
    for key, child in children(cell).items():
        if child is not None:
            yield from walk(child, f"{name}.{key}" if name else key, seen | {id(cell)})


@dataclass(slots=True)
class _Names:
    thing: weakref.ref[Any]
    names: tuple[str, ...]


class NameMap:
    """Names of everything below one or several models. Holds weak references only.

    `generation` grows whenever a name may have become another.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._roots: list[weakref.ref[Any]] = []
        self._cells: dict[int, _Names] = {}
        self._params: dict[int, _Names] = {}
        self._layout: tuple[int, ...] = ()
        self._unknown: set[int] = set()

    def add_root(self, cell: Any) -> bool:
        """Name a model and everything in it; return False when it is known, a part of a known one, or an optimizer."""
        is_new = False
        while (inner := wrapped(cell)) is not None:  # WithLossCell holds a loss function beside the model
            for beside in children(cell).values():
                if beside is not None and beside is not inner and not is_mindspores_own(beside):
                    is_new = self._add(beside) or is_new
            cell = inner
        return self._add(cell) or is_new

    def _add(self, cell: Any) -> bool:
        if _find(self._cells, cell) is not None or is_optimizer(cell):
            return False
        inside = {id(each) for _, each in walk(cell)}
        kept = [ref for ref in self._roots if (known := ref()) is not None and id(known) not in inside]
        self._roots = [*kept, weakref.ref(cell)]
        self._rebuild()
        return True

    def roots(self) -> list[Any]:
        """Return the models that are alive."""
        return [cell for ref in self._roots if (cell := ref()) is not None]

    def cells(self) -> list[tuple[str, Any]]:
        """Return (first name, cell) of everything, in the models' own order."""
        self._rebuild_if_moved()
        return [(entry.names[0], cell) for entry in self._cells.values() if (cell := entry.thing()) is not None]

    def cell_name(self, cell: Any) -> str | None:
        """Return the first name of a cell: "" for the model, None outside all models."""
        return next(iter(self.cell_names(cell)), None)

    def cell_names(self, cell: Any) -> tuple[str, ...]:
        """Return all names of a cell that is used at several places; a wrapper's are those of what it wraps."""
        return self._look_up("_cells", unwrap(cell))

    def param_name(self, parameter: Any) -> str | None:
        """Return the path of a parameter; None when it belongs to no model."""
        return next(iter(self.param_names(parameter)), None)

    def param_names(self, parameter: Any) -> tuple[str, ...]:
        """Return all paths of a parameter, then MindSpore's own name where it is another."""
        return self._look_up("_params", parameter)

    def parameters(self) -> list[tuple[str, Any]]:
        """Return (path, Parameter) of all models, each parameter once, under its first path."""
        self._rebuild_if_moved()
        return [(entry.names[0], p) for entry in self._params.values() if (p := entry.thing()) is not None]

    def label(self, parameter: Any) -> str:
        """Return a parameter's name in rows: its path, or MindSpore's name where it belongs to no model."""
        return self.param_name(parameter) or str(getattr(parameter, "name", "parameter outside the model"))

    def _look_up(self, table: str, thing: Any) -> tuple[str, ...]:
        found = _find(getattr(self, table), thing)
        if found is None and id(thing) not in self._unknown:
            self._rebuild_if_moved()
            found = _find(getattr(self, table), thing)
            if found is None:
                if len(self._unknown) > _MAX_UNKNOWN:
                    self._unknown.clear()
                self._unknown.add(id(thing))
        return found.names if found is not None else ()

    def _rebuild_if_moved(self) -> None:
        if self._layout != _layout(self.roots()):
            self._rebuild()

    def _rebuild(self) -> None:
        self.generation += 1
        self._cells, self._params = {}, {}
        self._unknown.clear()
        for prefix, root in self._prefixed():
            for name, cell in walk(root, prefix):
                _add(self._cells, cell, name)
                dot = f"{name}." if name else ""
                for key, parameter in own_parameters(cell).items():
                    if parameter is not None:
                        _add(self._params, parameter, dot + key)
        for entry in self._params.values():
            own = str(getattr(entry.thing(), "name", "") or "")
            if own and own not in entry.names:
                entry.names = (*entry.names, own)
        self._layout = _layout(self.roots())

    def _prefixed(self) -> Iterator[tuple[str, Any]]:
        """Yield (prefix, model): none for the only model that holds parameters, its class for each of several."""
        roots = self.roots()
        n_holding = sum(_holds_parameters(root) for root in roots)
        taken: dict[str, int] = {}
        for root in roots:
            is_only = len(roots) == 1 or (n_holding == 1 and _holds_parameters(root))
            base = "" if is_only else type(root).__name__
            taken[base] = taken.get(base, 0) + 1
            yield (base if taken[base] == 1 else f"{base}#{taken[base]}"), root


def is_optimizer(thing: Any) -> bool:
    """Return whether this is one of MindSpore's optimizers (nn, experimental, mint) or of a subclass."""
    return isinstance(thing, _OPTIMIZERS)


def is_mindspores_own(cell: Any) -> bool:
    """Return whether a cell beside a model in a wrapper is machinery: optimizer, reducer, loss-scale update."""
    return is_optimizer(cell) or type(cell).__module__.startswith(("mindspore.nn.wrap.", "mindspore.nn.layer.basic"))


def optimizer_classes() -> tuple[type, ...]:
    """Return the base classes that all optimizers derive from."""
    found: list[type] = [nn.Optimizer]
    try:
        from mindspore.experimental.optim.optimizer import Optimizer  # pyright: ignore[reportMissingImports]

        found.append(Optimizer)
    except ImportError:  # MindSpore before 2.1
        pass
    return tuple(found)


_OPTIMIZERS = optimizer_classes()


def _holds_parameters(root: Any) -> bool:
    return any(own_parameters(cell) for _, cell in walk(root))


def _layout(roots: list[Any]) -> tuple[int, ...]:
    """Return which cells and parameters are where, as a tuple that changes when they do."""
    return tuple(
        id(thing) for root in roots for _, cell in walk(root) for thing in (cell, *own_parameters(cell).values())
    )


def _find(table: dict[int, _Names], thing: Any) -> _Names | None:
    found = table.get(id(thing))
    return found if found is not None and found.thing() is thing else None


def _add(table: dict[int, _Names], thing: Any, name: str) -> None:
    known = _find(table, thing)
    if known is None:
        table[id(thing)] = _Names(weakref.ref(thing), (name,))
    elif name not in known.names:
        known.names = (*known.names, name)
