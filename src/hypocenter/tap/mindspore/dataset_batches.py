"""Which batch of a data set a tensor is of: what iterators of mindspore.dataset hand out is known while it lives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypocenter.tap.mindspore.patches import Patches
from hypocenter.tap.mindspore.tape import tensors
from hypocenter.tap.weakly import Ref

MOST = 4096  # tensors, before those that are gone are let go of


class DatasetBatches:
    """Numbers the batches that iterators hand out, over all of them."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Ref[Any], int]] = {}
        self._n_batches = 0

    def attach(self, patches: Patches) -> None:
        """Patch the iterators of this MindSpore; `patches` takes it off."""
        from mindspore.dataset.engine.iterators import Iterator  # pyright: ignore[reportMissingImports]

        patches.wrap(Iterator, "__next__", self._handing_out)

    def batch_of(self, tensor: Any) -> int | None:
        """Return the number of the batch that a tensor is of; None of what no iterator has handed out."""
        known = self._known.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _handing_out(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            with contextlib.suppress(Exception):  # whatever it hands out, the program is to have it
                self._note(batch)
            return batch

        return __next__

    def _note(self, batch: Any) -> None:
        self._n_batches += 1
        if len(self._known) > MOST:
            self._known = {key: entry for key, entry in self._known.items() if entry[0]() is not None}
        self._known.update((id(each), (Ref(each), self._n_batches)) for each in tensors(batch))
