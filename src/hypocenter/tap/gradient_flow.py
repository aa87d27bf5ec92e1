"""Which values of a backward descend from the gradient that it started from: those that a loss scale multiplies.

Backward also computes with what forward had saved alone: the derivative of `rsqrt` has `result.pow(3)` in it. Such a
value is the same at every loss scale, and is no gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from hypocenter.tap.op_tensors import storage_key


class GradientFlow:
    """Follows one backward by storage: a result is a gradient when something that it was computed from is one.

    Nobody may have told where a backward starts (`torch.autograd.grad`). Then everything in it counts as a gradient.
    """

    def __init__(self) -> None:
        self.is_told = False  # a backward was announced and is not over
        self._storages: set[int] = set()

    def start(self, seeds: Iterable[torch.Tensor | None]) -> None:
        """Begin to follow a backward.

        Args:
            seeds: the gradients that it starts from; None for one that torch makes, as the next operation.
        """
        self.is_told = True
        self._storages = {storage_key(seed) for seed in seeds if seed is not None}

    def end(self) -> None:
        """Stop following: the backward is over."""
        self.is_told = False
        self._storages.clear()

    def note(self, name: str, read: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> bool:
        """Return whether the results of an operator that has run now descend from the first gradient, and note it.

        Args:
            name: of the operator, without namespace and overload.
            read: the tensors among its arguments.
            outputs: what it gave.
        """
        if not self.is_told:
            return True
        descends = self._descends(name, read)
        for tensor in outputs:
            key = storage_key(tensor)
            if descends and key and (tensor.is_floating_point() or tensor.is_complex()):
                self._storages.add(key)
            else:
                self._storages.discard(key)
        return descends

    def _descends(self, name: str, read: Sequence[torch.Tensor]) -> bool:
        if torch._C._current_graph_task_id() == -1:  # not in backward yet: this is what it starts from
            return True
        if "empty" in name:  # a kernel that is no operator of torch may be about to write a gradient there
            return True
        if name.endswith("_like") or name.startswith("new_"):  # reads a shape, no values
            return False
        read = read[1:] if name == "copy_" else read  # whose first argument is only written to
        return any(storage_key(tensor) in self._storages for tensor in read)
