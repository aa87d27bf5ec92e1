"""The values of MindSpore's dumped tensors, and which of them cannot be what their files say.

On a CPU an operator that computes in float32 where the program has float16 is dumped wrongly: the file is labelled
Float16 and has the full shape, but holds the first half of a float32 buffer (MindSpore 2.10). The graph has both types;
without it the rule is: an operator with a Float32 input and a Float16 output, that is no cast.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor, Tensor
from hypocenter.compare.weights.elements import STORED, item_bytes
from hypocenter.importing.mindspore_items import Execution, Item, Sink
from hypocenter.importing.tensor_file import Measured, measure, open_tensor
from hypocenter.nouns import Summary

UNKNOWN = "counts histogram extremes sum sumsq"
_WIDE, _NARROW = "float32", ("float16", "bfloat16")
_AS_FLOAT32 = "bfloat16"  # is dumped as float32, without loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a dumped tensor."""

    shape: tuple[int, ...]
    dtype: str  # of the program
    summary: Summary
    lacks: str = ""
    digest: int | None = None
    tensor: Tensor | None = None  # where its exact values lie; None where there are none, or none to trust


class Values:
    """Reads the values of one step, each file once.

    Args:
        into: gets problems and notes.
        may_mislabel: the device may be a CPU.
        sketch: whether values are sketched.
    """

    def __init__(self, into: Sink, *, may_mislabel: bool, sketch: bool = True) -> None:
        self._into = into
        self._sketch = sketch
        self._may_mislabel = may_mislabel
        self._files: dict[int, tuple[Tensor, Measured] | None] = {}  # by identity of the item
        self._known: dict[int, Value | None] = {}  # by identity of the item
        self._wrong: set[tuple[int, tuple[int, ...]]] = set()  # checksums and shapes of what was found wrong

    def agree(self, given: Item, taken: Item) -> bool:
        """Return whether two items may be one tensor: what an operator gave, and what the next one took."""
        one, other = self._measured(given), self._measured(taken)
        if one is None or other is None:
            return True
        same_size = one[0].n == other[0].n
        return same_size and (one[0].dtype != other[0].dtype or one[1].crc32 == other[1].crc32)

    def look(self, item: Item) -> tuple[int, tuple[int, ...]] | None:
        """Return what tells a tensor from another: checksum and shape; None without a file."""
        found = self._measured(item)
        return (found[1].crc32, found[0].shape) if found is not None else None

    def _measured(self, item: Item) -> tuple[Tensor, Measured] | None:
        """Return where the values of an item's file lie, and what they are; None without a readable file."""
        if id(item) not in self._files:
            self._files[id(item)] = self._opened(item)
        return self._files[id(item)]

    def _opened(self, item: Item) -> tuple[Tensor, Measured] | None:
        if item.path is None:
            return None
        try:
            tensor = open_tensor(item.path)
            return tensor, measure(tensor, sketch=self._sketch)
        except CheckpointError as error:
            self._into.problem(
                f"values are left out: {item.path}: {error.what}{f' ({error.why})' if error.why else ''}"
            )
            return None

    def of(self, run: Execution | None, item: Item) -> Value | None:
        """Return what an item holds; None when nothing can be said of it."""
        if id(item) not in self._known:
            self._known[id(item)] = self._read(run, item)
        return self._known[id(item)]

    def _read(self, run: Execution | None, item: Item) -> Value | None:
        found = self._measured(item)
        if found is None:
            return self._told(item)
        tensor, measured = found
        held = self._held_otherwise(run, item, tensor, measured)
        if held is not None:
            self._wrong.add((measured.crc32, tensor.shape))
            return self._doubtful(tensor, held)
        if item.name.dtype == _AS_FLOAT32 and tensor.dtype == _WIDE:
            return Value(shape=tensor.shape, dtype=_AS_FLOAT32, summary=measured.summary, tensor=tensor)
        self._into.set_version("", digest="crc32")
        return Value(
            shape=tensor.shape, dtype=tensor.dtype, summary=measured.summary, digest=measured.crc32, tensor=tensor
        )  # fmt: skip

    def _told(self, item: Item) -> Value | None:
        row = item.row
        if row is None:
            return None
        if row.digest is not None:
            self._into.set_version("", digest=row.digest_kind)
        return Value(
            shape=row.shape, dtype=row.name.dtype, summary=row.summary, lacks=row.lacks, digest=row.digest
        )  # fmt: skip

    def _held_otherwise(self, run: Execution | None, item: Item, tensor: Tensor, measured: Measured) -> str | None:
        """Return the device's format of a tensor that was dumped wrongly ("": not known); None: dumped right."""
        name = item.name
        if not self._may_mislabel or run is None or name.dtype not in _NARROW or tensor.dtype not in _NARROW:
            return None
        node = run.node
        if node is not None:
            side = 0 if name.io == "input" else 1
            held, seen = node.held[side], node.types[side]
            if name.slot < len(held) and held[name.slot] and name.slot < len(seen) and seen[name.slot] == name.dtype:
                return held[name.slot] if held[name.slot] != name.dtype else None
        if name.io == "input":
            return "" if (measured.crc32, tensor.shape) in self._wrong else None
        has_wide = any(i.name.dtype == _WIDE for i in run.inputs)
        return "" if has_wide and run.op_type != "Cast" else None

    def _doubtful(self, tensor: Tensor, held: str) -> Value:
        """Return what the first part of a buffer proves of the whole: least counts of not finite, least extremes."""
        self._into.note(
            "MindSpore on a CPU dumps what is float32 on the device and float16 in the program as its first half, "
            "labelled Float16: of such values only bounds are known (of those of which the graph says it), or nothing"
        )
        n = math.prod(tensor.shape)
        known = Summary(n=n)
        if held in STORED and isinstance(tensor, StoredTensor):
            m = n * item_bytes(tensor.dtype) // item_bytes(held)
            part = replace(tensor, shape=(m,), dtype=held, strides=(1,))
            try:
                found = measure(part).summary
            except CheckpointError:
                found = Summary()
            known = Summary(
                n=n, n_nan=found.n_nan, n_posinf=found.n_posinf, n_neginf=found.n_neginf, absmax=found.absmax
            )
        return Value(shape=tensor.shape, dtype=held or tensor.dtype, summary=known, lacks=UNKNOWN)
