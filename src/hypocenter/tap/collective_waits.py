"""Results of asynchronous collectives: they are there once somebody has waited.

The classes of the handles (`Work`, `AsyncCollectiveTensor`) are patched only while a result is looked for, that is at
scheduled steps. A result that nobody waits for in a way seen here (a callback, a stream wait in C++) is not reported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hypocenter.tap.own_frame import RAISED, hear

Told = Callable[[], None]
_MAX_PENDING = 4096  # handles looked for at a time: each keeps its tensors alive


class Waits:
    """Tells when the handles of asynchronous collectives have been waited for."""

    def __init__(self) -> None:
        self._works: dict[int, tuple[Any, list[Told]]] = {}
        self._tensors: dict[int, tuple[Tensor, list[Told]]] = {}
        self._undos: dict[tuple[type, str], Callable[[], None]] = {}

    def after_work(self, works: Sequence[Any], tell: Told) -> None:
        """Call `tell` once all of these works have been waited for."""
        if not works or len(self._works) + len(works) > _MAX_PENDING:
            return
        left = {id(work) for work in works}

        def one(key: int) -> None:
            left.discard(key)
            if not left:
                tell()

        for work in works:
            self._patch(_definer(type(work), "wait"), "wait", self._waited_work)
            self._works.setdefault(id(work), (work, []))[1].append(functools.partial(one, id(work)))

    def after_tensor(self, result: Any, tell: Callable[[Tensor], None]) -> None:
        """Call `tell` with the values of an AsyncCollectiveTensor once it has been waited for."""
        elem = result.elem
        for name in ("trigger_wait", "wait"):
            self._patch(_definer(type(result), name), name, self._waited_tensor)
        key = elem.untyped_storage()._cdata
        self._tensors.setdefault(key, (elem, []))[1].append(functools.partial(tell, elem))

    def forget(self) -> None:
        """Wait for no results any more, and take the patches off."""
        self._works.clear()
        self._tensors.clear()
        for undo in self._undos.values():
            undo()
        self._undos.clear()

    def _waited_work(self, work: Any) -> None:
        known = self._works.get(id(work))
        if known is not None and known[0] is work:
            del self._works[id(work)]
            for tell in known[1]:
                tell()

    def _waited_tensor(self, result: Any) -> None:
        known = self._tensors.pop(result.elem.untyped_storage()._cdata, None)
        if known is not None:
            for tell in known[1]:
                tell()

    def _patch(self, owner: type, name: str, waited: Callable[[Any], None]) -> None:
        if (owner, name) in self._undos:
            return

        def begin(work: Any, *_: Any) -> Callable[[Any], None]:
            return lambda result: None if result is RAISED else waited(work)

        self._undos[owner, name] = hear(owner, name, begin)


def _definer(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))
