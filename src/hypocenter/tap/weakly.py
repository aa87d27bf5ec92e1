"""Weak references of ours, which torch does not count.

`torch.utils.swap_tensors` refuses tensors that are referred to weakly, and `module.to` swaps those of FSDP2 and other
subclasses. Ours go on meaning the same variable after a swap, which is what they are for: no reason to refuse.
"""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

T = TypeVar("T")


class Ref(weakref.ref[T]):
    """A weak reference of ours, which can be told from those of others."""

    __slots__ = ()


class _Others:
    """Stands in for the module `weakref` in torch's swap of tensors."""

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    @staticmethod
    def getweakrefs(thing: Any) -> list[Any]:
        """Return the weak references to a thing that are not ours."""
        return [each for each in weakref.getweakrefs(thing) if not isinstance(each, Ref)]


def leave_swaps_alone() -> None:
    """Let torch swap tensors that only we refer to weakly, for good: references outlive what made them."""
    import torch

    if getattr(torch.utils, "weakref", None) is weakref:
        setattr(torch.utils, "weakref", _Others())  # noqa: B010 - it has no such name for a type checker
