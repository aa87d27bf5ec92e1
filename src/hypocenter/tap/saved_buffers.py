"""Buffers that the call of a root changes, as they were before it: batch norm's running statistics, for one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import overload

import torch
from torch._utils import _unflatten_dense_tensors
from torch.nn.modules.batchnorm import _NormBase

from hypocenter.tap.gradients import PLAIN_TYPES
from hypocenter.tap.tape import version_of

SMALL_BUFFERS_BYTES = 64 << 20  # on the first call all buffers are copied if they are no larger than this together
LOOKS = (1, 8, 64)  # calls at which modules, buffers and parameters of a root are looked for anew

_IS_CONTIGUOUS = torch.Tensor.is_contiguous
_Key = tuple[int, str]
"""Id of a module, and the name of a buffer in it."""

Saved = tuple[torch.nn.Module, str, torch.Tensor]
"""A module, the name of a buffer in it, and its values."""


class SavedBuffers(Sequence[Saved]):
    """Copies of buffers, those of one format and device in one operation; cut apart only when somebody asks.

    Args:
        buffers: as they are now.
    """

    def __init__(self, buffers: Sequence[Saved] = ()) -> None:
        self._buffers = buffers
        self._copies: list[tuple[list[int], torch.Tensor]] = []  # places among the buffers, their values in a row
        if not buffers:
            return
        kinds = [(buffer.dtype, buffer.device) for _, _, buffer in buffers]
        with torch.no_grad():
            for each in dict.fromkeys(kinds):
                places = [place for place, kind in enumerate(kinds) if kind == each]
                self._copies += _copied([buffers[i][2] for i in places], places)

    def __len__(self) -> int:
        return len(self._buffers)

    @overload
    def __getitem__(self, at: int) -> Saved: ...
    @overload
    def __getitem__(self, at: slice) -> list[Saved]: ...
    def __getitem__(self, at: int | slice) -> Saved | list[Saved]:
        found: dict[int, Saved] = {}
        for places, copy in self._copies:
            buffers = [self._buffers[i] for i in places]
            values = [copy] if len(places) == 1 else _unflatten_dense_tensors(copy, [b for *_, b in buffers])
            found.update({i: (m, key, each) for i, (m, key, _), each in zip(places, buffers, values, strict=True)})
        return found[range(len(self))[at]] if isinstance(at, int) else [found[i] for i in range(len(self))[at]]

    def __iter__(self) -> Iterator[Saved]:
        return iter(self[:])


def _copied(buffers: list[torch.Tensor], places: list[int]) -> list[tuple[list[int], torch.Tensor]]:
    if len(buffers) > 1 and PLAIN_TYPES.issuperset(map(type, buffers)) and all(map(_IS_CONTIGUOUS, buffers)):
        return [(places, torch._C._nn.flatten_dense_tensors(buffers))]  # type: ignore[reportAttributeAccessIssue]
    return [([place], buffer.clone()) for place, buffer in zip(places, buffers, strict=True)]


class ChangingBuffers:
    """Which buffers a root's forward changes, learned at its first call; copies of those before each later call.

    Versions alone do not tell: batch norm updates its running statistics without a new version.
    """

    def __init__(self) -> None:
        self._all: list[tuple[weakref.ref[torch.nn.Module], _Key]] | None = None
        self._parameters: list[weakref.ref[torch.nn.Parameter]] = []
        self._changing: set[_Key] = set()
        self._unchanged: list[tuple[Saved, int]] = []  # not known to change, with their versions before the call
        self._copies: dict[_Key, torch.Tensor] = {}
        self._n_calls = 0

    def before(self, root: torch.nn.Module) -> SavedBuffers:
        """Copies of the buffers that the coming call may change."""
        if self._all is None or self._n_calls in LOOKS:
            self._all = [
                (weakref.ref(m), (id(m), key)) for m in root.modules() for key, b in m._buffers.items() if b is not None
            ]
            self._parameters = [weakref.ref(p) for p in root.parameters()]
        is_first, changing = self._n_calls == 0, self._changing
        self._n_calls += 1
        if not self._all:
            return _NOTHING
        present = [
            ((m, key[1], b), key) for ref, key in self._all
            if (m := ref()) is not None and key[1] in m._buffers and (b := m._buffers[key[1]]) is not None
        ]  # fmt: skip
        self._unchanged = [(each, version_of(each[2])) for each, key in present if key not in changing]
        if not is_first:
            return SavedBuffers([each for each, key in present if key in changing])
        is_small = sum(b.numel() * b.element_size() for (*_, b), _ in present) <= SMALL_BUFFERS_BYTES
        saved = SavedBuffers([each for each, _ in present if is_small or isinstance(each[0], _NormBase)])
        self._copies = {(id(m), key): copy for m, key, copy in saved}
        return saved

    def parameters(self) -> list[torch.nn.Parameter]:
        """Of the whole root, as it was when its buffers were last looked for."""
        return [p for ref in self._parameters if (p := ref()) is not None]

    def after(self) -> None:
        """Note which buffers the call changed or replaced."""
        for (m, key, b), version in self._unchanged:
            now, copy = _buffer(m, key), self._copies.get((id(m), key))
            if now is not b or version_of(b) != version or (copy is not None and not torch.equal(copy, b)):
                self._changing.add((id(m), key))
        self._copies, self._unchanged = {}, []


_NOTHING = SavedBuffers()


def _buffer(module: torch.nn.Module, key: str) -> torch.Tensor | None:
    return module._buffers[key] if key in module._buffers else None  # noqa: SIM401 (a ScriptModule's have no `get`)
