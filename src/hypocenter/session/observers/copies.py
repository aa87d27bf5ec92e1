"""Copies of the trained model that live beside it: an average of its weights, a teacher, a reference policy.

Seen are modules made by `copy.deepcopy` (or unpickled) while we watch, which is how EMA copies are made, among them the
one inside `torch.optim.swa_utils.AveragedModel`; an AveragedModel made before, once it updates; and any other watched
outermost module. Not seen: lists of cloned tensors, and copies made before we watched that are never called.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from hypocenter.session.observers.grid import is_low
from hypocenter.tap.names import NameMap, class_name, unwrap
from hypocenter.tap.own_frame import RAISED, hear

KEPT_AT_MOST = 100_000  # modules that are remembered until the trained model is known
TRIES = 8  # updates at which a copy is compared with what is trained: GANs have several optimizers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A trained parameter and its copy in a low format."""

    source: Tensor
    copy: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A copy of the trained model."""

    kind: str  # its class, as the user calls it
    pairs: tuple[Pair, ...]


class Copies:
    """Notices modules as they are copied, and finds those that match a trained model."""

    def __init__(self, names: NameMap) -> None:
        self._names = names
        self._made: list[_Made] = []
        self._given: set[int] = set()  # ids of modules that were noticed, while they live
        self._n_roots = -1

    def attach(self) -> Callable[[], None]:
        """Start noticing; returns the undo."""
        undos = [self._on_call(nn.Module, "__setstate__"), self._on_call(AveragedModel, "update_parameters")]

        def undo() -> None:
            for each in undos:
                each()

        return undo

    def _on_call(self, owner: type, name: str) -> Callable[[], None]:
        def begin(module: Any, *_: Any) -> Callable[[Any], None]:
            return lambda result: None if result is RAISED else self._note(_inner(module, name))

        return hear(owner, name, begin)

    def _note(self, module: Any) -> None:
        if id(module) in self._given or len(self._made) >= KEPT_AT_MOST or not isinstance(module, nn.Module):
            return
        self._made.append(_Made(weakref.ref(module)))
        self._given.add(id(module))
        weakref.finalize(module, self._given.discard, id(module)).atexit = False

    def new(self, trained: Sequence[Tensor]) -> list[Copy]:
        """Copies in a low format that were not there at the last call.

        Args:
            trained: parameters that an optimizer updates.
        """
        watched = self._names.roots()
        if len(watched) != self._n_roots:
            self._n_roots = len(watched)
            for root in watched:
                self._note(unwrap(root))
        if not self._made:
            return []
        roots = [unwrap(root) for root in watched]
        ids = {id(p) for p in trained}
        live = [(m, module) for m in self._made if (module := m.module()) is not None]
        inner = {id(child) for _, module in live for child in _below(module)}
        found: list[Copy] = []
        self._made = []
        for made, module in live:
            if id(module) in inner:
                continue
            copy = _copy_in(roots, unwrap(module), ids)
            if copy is not None:
                found.append(copy)
            elif made.tries < TRIES:
                self._made.append(_Made(made.module, made.tries + 1))
        return [copy for copy in found if copy.pairs]


def _inner(module: Any, name: str) -> Any:
    return module.module if isinstance(module, AveragedModel) and name != "__setstate__" else module


@dataclass(frozen=True, slots=True)
class _Made:
    module: weakref.ref[nn.Module]
    tries: int = 0


def _below(module: nn.Module) -> list[nn.Module]:
    return [child for child in module.modules() if child is not module]


def _copy_in(roots: Sequence[nn.Module], module: nn.Module, trained: set[int]) -> Copy | None:
    """The one trained module that this is a copy of; None without one, or when several look alike."""
    theirs = list(module.parameters())
    if not theirs or any(id(p) in trained for p in theirs):
        return None
    kind, shapes = class_name(module), [p.shape for p in theirs]
    alike: dict[int, Sequence[Tensor]] = {}
    for candidate in (m for root in roots for m in root.modules() if class_name(m) == kind and m is not module):
        ours: Sequence[Tensor] = list(candidate.parameters())
        if [p.shape for p in ours] == shapes and any(id(p) in trained for p in ours):
            alike[id(candidate)] = ours
    if len(alike) != 1:
        return None
    (ours,) = alike.values()
    pairs = [Pair(source=a, copy=b) for a, b in zip(ours, theirs, strict=True) if is_low(b) and id(a) in trained]
    return Copy(kind=kind, pairs=tuple(pairs))
