"""Numbers of the tensors that a differentiated function is called with: whether data repeat, shift or part.

The rows are those of hypocenter.session.observers.streams. On an accelerator only small tensors are looked at, after
the step's own wait for it; on the CPU all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from numpy.typing import NDArray

from hypocenter import batch_numbers
from hypocenter.batch_numbers import KEPT, digest, moments, places, row_numbers, rows_kept
from hypocenter.detect.replica_rows import BATCH_PORT, FIELD_PORT, ROW_PLACES
from hypocenter.session.batch_readings import AT_MOST, BRIEF, FIRST, NOTHING, WHOLE, Asked, Inside
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.tap.mindspore.gradients import dtype_name
from hypocenter.tap.mindspore.tape import GradCall, tensors

MOST_MICROBATCHES = 1024  # of one step
SMALL_BYTES = 1 << 18  # of a tensor on an accelerator
_WHOLE_NUMBERS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}  # by size


class Batches(Part):
    """Writes rows of each batch; none where ranks are given the same batch because they share a model."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_host = ms.get_context("device_target") == "CPU"

    def begin_microbatch(self, call: GradCall) -> None:
        """Look at the arguments of the function now, if they are on the host."""
        if self._is_host and call.number < MOST_MICROBATCHES and self._may_tell():
            self._look(call)

    def before_update(self, update: Update) -> None:
        """Look at the arguments on an accelerator, as the session has waited for the device."""
        if not self._is_host and self._may_tell():
            for call in update.microbatches[:MOST_MICROBATCHES]:
                self._look(call)

    def _may_tell(self) -> bool:
        if self.context.rank()[1] == 1:
            return True
        return ms.get_auto_parallel_context("parallel_mode") in ("stand_alone", "data_parallel")

    def _look(self, call: GradCall) -> None:
        step = self.context.clock.step
        given = list(self._given(call))
        for (name, dtype, array), inside in zip(given, _inside([array for *_, array in given]), strict=True):
            for port, values in _ports(array, is_full=step < FIRST):
                asked = Asked(
                    name=name, port=port, microbatch=call.number, order=self.context.clock.next_order(),
                    dtype=dtype, shape=array.shape, n=array.size,
                )  # fmt: skip
                some = values[:: -(-values.size // BRIEF)]
                numbers = moments(some if some.dtype.kind in "fiub" else some.astype(np.float32))
                self.rows.append(asked.reading(step, digest(values.view(np.uint8)), numbers, inside))

    def _given(self, call: GradCall) -> Iterator[tuple[str, str, NDArray[Any]]]:
        """Yield the name, format in torch's words and values of each tensor but the one that backward starts from."""
        args = call.args[:-1] if call.has_sens and "sens" not in call.kwargs else call.args
        named = [(f"in[{i}]", value) for i, value in enumerate(args)]
        named += [(name, value) for name, value in call.kwargs.items() if name != "sens"]
        found = [(name, list(tensors(value))) for name, value in named]
        flat = [(f"{name}[{i}]" if len(held) > 1 else name, t) for name, held in found for i, t in enumerate(held)]
        for name, tensor in flat[:AT_MOST]:
            if isinstance(tensor, ms.Parameter) or not tensor.size:
                continue
            if self._is_host or tensor.nbytes <= SMALL_BYTES:
                array = tensor.asnumpy()
                if array.dtype.kind != "c":
                    yield name, dtype_name(tensor), array


def _ports(array: NDArray[Any], *, is_full: bool) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield what is digested, flat: all of integers; of floats a sample, and at full steps another, larger one."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if array.dtype.kind in "iub":
        yield BATCH_PORT, flat
        return
    yield FIELD_PORT, np.ascontiguousarray(flat[:: -(-flat.size // BRIEF)])
    if is_full:
        yield BATCH_PORT, np.ascontiguousarray(flat[:: -(-flat.size // WHOLE)])


def _inside(arrays: list[NDArray[Any]]) -> list[Inside]:
    """Return row numbers and shares of each array."""
    at = [i for i, array in enumerate(arrays) if array.ndim]
    tables = [np.ascontiguousarray(arrays[i]).reshape(len(arrays[i]), -1) for i in at]
    if not tables:
        return [NOTHING] * len(arrays)
    shapes = [(table.shape[0], table.shape[1]) for table in tables]
    taken = np.stack([table.reshape(-1)[places(table.size)].astype(np.float32) for table in tables])
    kinds = [table.dtype.kind for table in tables]
    shares = batch_numbers.shares(
        taken, shapes, [kind in "iub" for kind in kinds], next((i for i, kind in enumerate(kinds) if kind in "iu"), -1)
    )
    kept = rows_kept(shapes)
    numbers = {i: row_numbers(tables[i].view(_WHOLE_NUMBERS[tables[i].itemsize])) for i in kept}
    order = np.sort(numbers[kept[0]].argsort()[:KEPT]) if kept else np.arange(0)
    out = [NOTHING] * len(arrays)
    for i, place in enumerate(at):
        rows = numbers[i][order] * ROW_PLACES + order if i in numbers else order[:0]
        out[place] = tuple(rows.tolist()), tuple(shares[i].tolist())
    return out
