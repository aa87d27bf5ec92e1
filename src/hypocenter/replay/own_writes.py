"""A forward with other inputs must not leave its values anywhere: it writes only to what it has made itself.

A replay with the inputs of the run leaves what the run has left. One with others does not: what it wrote into a cache,
a memory bank or a static buffer would go on into training. So it is refused before it begins to write.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.tap.dispatch import Mode, declared, is_mutable, name_of
from hypocenter.tap.tape import storage_of

_FSDP = "fsdp"  # namespace of operators that fill parameters, which it lets go of again: see `sharded.put_back`
_MAKES = frozenset({"aten.lift_fresh.default", "aten.lift.default"})  # they give back what Python has just made


class OwnWrites(Mode):
    """Refuse operators that write to tensors from before. To be entered around a forward.

    Args:
        put_back: tensors that get their values back afterwards.

    Raises:
        ReplayImpossible: in place of the operator.
    """

    def __init__(self, put_back: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._own = {key for tensor in put_back if (key := storage_of(tensor))}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_mutable(func) and func.namespace != _FSDP:
            self._look(func, args, kwargs)
        result = func(*args, **kwargs)
        made = {key for t in _tensors(result) if (key := storage_of(t))} - self._own
        if made and name_of(func) not in _MAKES:
            made -= {storage_of(t) for t in _tensors(*args, *kwargs.values())}
        self._own |= made
        return result

    def _look(self, func: Any, args: Any, kwargs: Any) -> None:
        for i, argument in enumerate(declared(func)):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            for tensor in _tensors(given):
                if tensor.numel() and storage_of(tensor) not in self._own:
                    raise ReplayImpossible(
                        f"its forward writes to a tensor from before ({name_of(func)}), which could not be put back"
                    )


def _tensors(*values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that an operator is given, or gives."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from (each for each in value if isinstance(each, torch.Tensor))
