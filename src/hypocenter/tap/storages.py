"""Which event wrote a storage last, and whether anything is in it. Storages are held weakly."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from hypocenter.opbits import OUTSIDE
from hypocenter.tap.op_tensors import storage_key

UNDEFINED = frozenset({
    "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "resize_", "empty_permuted",
})  # fmt: skip
"""Operators that only make room: the bits of what they give mean nothing."""
_PRUNE = 1 << 14  # storages between two looks which of them are gone


class Storages:
    """Which event wrote a storage last. An address is not used again while it is known here."""

    def __init__(self) -> None:
        self._writer: dict[int, int] = {}
        self._alive: dict[int, StorageWeakRef] = {}
        self._undefined: set[int] = set()
        self._prune_at = _PRUNE

    def read(self, tensor: torch.Tensor) -> tuple[int, bool]:
        """Return the last writer, or OUTSIDE, and whether parts of the storage may never have been written."""
        key = storage_key(tensor)
        return self._writer.get(key, OUTSIDE), key in self._undefined

    def write(self, tensor: torch.Tensor, event: int, *, undefined: bool = False) -> None:
        """Note that this event has written the storage; `undefined`: it has only made room."""
        key = storage_key(tensor)
        if not key:
            return
        if key not in self._alive:
            self._alive[key] = StorageWeakRef(tensor.untyped_storage())
        self._writer[key] = event
        if undefined:
            self._undefined.add(key)
        elif key in self._undefined and _covers(tensor):
            self._undefined.discard(key)
        if len(self._alive) > self._prune_at:
            self._prune()

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return whether any event has written the storage."""
        return storage_key(tensor) in self._writer

    def forget(self, tensor: torch.Tensor) -> None:
        """Let the storage count as never written."""
        key = storage_key(tensor)
        self._writer.pop(key, None)
        self._undefined.discard(key)

    def is_unwritten(self, tensor: torch.Tensor) -> bool:
        """Return whether nothing but room has been made for it."""
        return storage_key(tensor) in self._undefined

    def key_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the storage, as `writers` names it."""
        return storage_key(tensor)

    def _prune(self) -> None:
        for key in [key for key, alive in self._alive.items() if alive.expired()]:
            del self._alive[key]
            self._writer.pop(key, None)
            self._undefined.discard(key)
        self._prune_at = max(_PRUNE, 2 * len(self._alive))


def _covers(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() >= tensor.untyped_storage().nbytes()
