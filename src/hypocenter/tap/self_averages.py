"""What the program makes of a tensor and itself, where it takes the two for different ones.

`average.lerp_(weight, 0.01)` of one memory: the lerp leaves the tensor as it is, and
`average.mul_(0.99).add_(weight, alpha=0.01)` shrinks it. And `weight.copy_(kept)` of one memory after other values were
copied over the weight and a model was called: what was to be put back is lost, for it was never copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hypocenter.tap.tape import storage_of

_KEPT = 4096  # tensors between two updates
_SAME = 1e-6  # two factors that add up to 1


class SelfAverages:
    """Hears of operations in place, in the order in which the program makes them."""

    def __init__(self) -> None:
        self.storages: set[int] = set()  # of tensors that were averaged with themselves since the last update
        self.put_back: set[int] = set()  # of those that were overwritten, used and then overwritten by themselves
        self.n_calls = 0  # of outermost modules
        self._overwritten: dict[int, int] = {}  # by storage, at which call, by a tensor of another memory
        self._decays: dict[int, float] = {}  # by storage, of the last `mul_`

    def clear(self) -> None:
        """Begin anew, as an update has been made."""
        for known in (self.storages, self.put_back, self._decays, self._overwritten):
            known.clear()

    def hear(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Note one operation, by the name of its function; of those that are none of an average nothing."""
        kind = _KINDS.get(name)
        if kind is None or len(args) < 2 or len(self._decays) + len(self._overwritten) > _KEPT:
            return
        try:
            self._note(kind, args, kwargs)
        except Exception:  # an unusual tensor must not break the user's operation
            self.clear()

    def _note(self, kind: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        if kind == "mul_":
            if isinstance(args[1], float) and 0.0 < args[1] < 1.0:
                self._decays.update((storage_of(each), args[1]) for each in _listed(args[0]))
        elif kind == "copy_":
            own = set(_same(args))
            self.put_back |= {each for each in own if self._overwritten.get(each, self.n_calls) < self.n_calls}
            others = [storage_of(each) for each in _listed(args[0])] if not own else ()
            self._overwritten.update(dict.fromkeys(others, self.n_calls))
        elif kind == "lerp_":
            self.storages.update(_same(args))
        elif isinstance(alpha := kwargs.get("alpha"), float):
            same = [each for each in _same(args) if abs(self._decays.pop(each, 0.0) + alpha - 1.0) < _SAME]
            self.storages.update(same)


_KINDS = {f"{before}{name}": name for name in ("mul_", "add_", "lerp_", "copy_") for before in ("", "_foreach_")}
_KINDS["__set__"] = "copy_"  # of `.data`


def _listed(tensors: Any) -> Sequence[Any]:
    return [each for each in (tensors if isinstance(tensors, (list, tuple)) else (tensors,)) if _is_tensor(each)]


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _same(args: Sequence[Any]) -> Iterator[int]:
    """Yield the storages of those that are given themselves."""
    for target, given in zip(_listed(args[0]), _listed(args[1]), strict=False):
        storage = storage_of(target)
        is_view_alike = target.shape == given.shape and target.stride() == given.stride()
        if (
            storage
            and storage == storage_of(given)
            and is_view_alike
            and target.storage_offset() == given.storage_offset()
        ):
            yield storage
