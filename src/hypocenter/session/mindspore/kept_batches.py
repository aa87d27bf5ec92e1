"""`--save-batches N`: the integer tensors of the batches of the first N steps, whole, and what the loss asks for.

The files are those of hypocenter.session.observers.kept_batches: `model|NAME` and `loss|[n]` as they were given, and
`target`, read off the gradient of the logits. In PyNative all of it is kept. Of compiled graphs only arguments are
seen: of a function the first one is taken for the model's, and there is no `target`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore import nn  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.record.layout import batches_directory
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context, Part
from hypocenter.session.mindspore.tensor_file import write_bits
from hypocenter.tap.mindspore.calls import is_training_cell
from hypocenter.tap.mindspore.names import is_optimizer, own_parameters, unwrap, walk
from hypocenter.tap.mindspore.tape import GradCall, Undo, tensors
from hypocenter.tap.mindspore.tensors import Bits, bits_of

BUDGET_BYTES = 1 << 30  # of one rank's files
MOST_MICROBATCHES = 64  # of one step
AT_MOST = 16  # tensors of one batch
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


class KeptBatches(Part):
    """Keeps the integer tensors of the first batches, if that was asked for; afterwards it only counts the steps."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_steps = context.config.save_batches
        self._left_bytes = BUDGET_BYTES
        self._is_forward = False
        self._depth = 0
        self._given: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None  # to the model, in this micro-batch
        self._logits: Any = None
        self._whole: tuple[tuple[Any, ...], Mapping[str, Any]] | None = None  # to a compiled training cell
        self._kept: dict[int, dict[str, Bits]] = {}
        self._widths: tuple[int, frozenset[int]] = (-1, frozenset())

    @property
    def _is_on(self) -> bool:
        return self.context.clock.step < self._n_steps

    def attach(self) -> Undo:
        """Watch what models are called with, and what they return."""
        if self._n_steps:
            self.context.patches.wrap(nn.Cell, "__call__", self._around)
        return lambda: None

    def _around(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(cell: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_on or is_optimizer(cell):
                return original(cell, *args, **kwargs)
            if not self._is_forward:
                if ms.get_context("mode") == ms.GRAPH_MODE and is_training_cell(cell):
                    self._whole = args, kwargs
                return original(cell, *args, **kwargs)
            if self._given is None and unwrap(cell) is cell and next(iter(cell.get_parameters()), None) is not None:
                self._given = args, kwargs
            output = original(cell, *args, **kwargs)
            self._look_for_logits(output)
            return output

        return __call__

    def _look_for_logits(self, output: Any) -> None:
        """Remember the last output of a micro-batch that is as wide as the vocabulary."""
        wide = [t for t in tensors(output) if t.ndim > 1 and t.shape[-1] in self._vocabularies()]
        self._logits = wide[0] if wide else self._logits

    def _vocabularies(self) -> frozenset[int]:
        """Return the number of rows of the embeddings, each a possible size of the vocabulary."""
        roots = self.context.names.roots()
        if len(roots) != self._widths[0]:
            found = {
                parameter.shape[0]
                for root in roots
                for _, cell in walk(root)
                for parameter in own_parameters(cell).values()
                if "embed" in type(cell).__name__.lower() and parameter is not None and len(parameter.shape) == 2
            }
            self._widths = len(roots), frozenset(found)
        return self._widths[1]

    def begin_call(self, cell: Any) -> None:
        """Begin to look at a training cell: its forward may run before its micro-batch begins."""
        self._is_forward, self._given, self._logits = ms.get_context("mode") != ms.GRAPH_MODE, None, None

    def end_call(self, cell: Any) -> None:
        """Stop looking at forward: the training cell has returned."""
        self._is_forward = False

    def begin_microbatch(self, call: GradCall) -> None:
        """Begin to look at a micro-batch: its forward is about to run."""
        if not self._is_forward:
            self._given = self._logits = None
        self._is_forward = call.has_value

    def forward_done(self, call: GradCall) -> None:
        """Copy what a micro-batch was made of: its forward has run."""
        self._is_forward = False  # of a second micro-batch in a training cell it runs after `begin_microbatch`
        if not self._is_on or call.number >= MOST_MICROBATCHES:
            return
        if call.has_value:
            kept = _of_both(self._given, (call.args, call.kwargs))
        else:
            kept = _of_graph(call.fn, call.args, call.kwargs)
        self._kept[call.number], self._given = kept, None
        if self._logits is not None:
            self._logits.register_hook(lambda gradient: _keep_targets(gradient, kept))
        else:
            self.context.warn(
                "which tokens the loss asks for is not kept: "
                + ("no cell gives out logits" if call.has_value else "it is not seen in a compiled graph")
            )
        self._logits = None

    def before_update(self, update: Update) -> None:
        """Write what was kept of the step, which is complete."""
        self._write(update.step)

    def end_step(self, step: int) -> None:
        """Write also a step that was skipped, or compiled as a whole: it is over."""
        if self._whole is not None:
            (args, kwargs), self._whole = self._whole, None
            self._kept.setdefault(0, _of_graph(None, args, kwargs))
            self.context.warn("which tokens the loss asks for is not kept: it is not seen in a compiled graph")
        self._write(step)

    def _write(self, step: int) -> None:
        kept, self._kept, self._given, self._logits = self._kept, {}, None, None
        for microbatch, found in kept.items() if 0 <= step < self._n_steps else ():
            n_bytes = sum(bits.array.nbytes for bits in found.values())
            if n_bytes > self._left_bytes:
                self.context.warn("batches are no longer kept: the size budget is used up")
                self._n_steps = 0
                return
            self._left_bytes -= n_bytes
            folder = batches_directory(self.context.directory, self.context.rank()[0]) / f"step-{step:06d}"
            folder.mkdir(parents=True, exist_ok=True)
            if found:
                write_bits(found, folder / f"mb-{microbatch}.safetensors", {})


Given = tuple[tuple[Any, ...], Mapping[str, Any]]


def _of_both(model: Given | None, whole: Given) -> dict[str, Bits]:
    """Return what the model was called with, and the labels among the other arguments of the function."""
    known: set[int] = set()
    kept: dict[str, Bits] = {}
    for name, tensor in _integers(*(model or ((), {}))):
        known.add(id(tensor))
        kept[f"model|{name}"] = bits_of(tensor)
    others = [t for _, t in _integers(*whole) if id(t) not in known and t.size > 1]
    same = [bits.array for bits in kept.values()]
    for tensor in others:
        bits = bits_of(tensor)
        if not any(np.array_equal(bits.array, array) for array in same):  # the model's own, under another object
            kept[f"loss|[{sum(name.startswith('loss') for name in kept)}]"] = bits
    return kept


def _of_graph(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Bits]:
    """Return a graph's arguments: a model's own; of a function, or a training cell, the first is the model's."""
    given = list(_integers(args, kwargs))
    if isinstance(function, nn.Cell):
        return {f"model|{name}": bits_of(tensor) for name, tensor in given}
    kept = {f"model|{name}": bits_of(tensor) for name, tensor in given[:1]}
    return kept | {f"loss|[{i}]": bits_of(tensor) for i, (_, tensor) in enumerate(given[1:])}


def _integers(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    named = [(f"in[{i}]", value) for i, value in enumerate(args)] + list(kwargs.items())
    found = [(name, t) for name, value in named for t in tensors(value)]
    counts: dict[str, int] = {}
    for name, tensor in found[:AT_MOST]:
        counts[name] = counts.get(name, -1) + 1
        if str(tensor.dtype).lower() in _INTEGERS and not isinstance(tensor, ms.Parameter):
            yield (f"{name}[{counts[name]}]" if counts[name] else name), tensor


def _keep_targets(gradient: Any, kept: dict[str, Bits]) -> Any:
    """Keep the token with a negative gradient at each place, or -1, and return the gradient unchanged."""
    try:
        values: NDArray[Any] = bits_of(gradient.astype(ms.float32)).array
        lowest = values.min(axis=-1)
        kept["target"] = Bits(dtype="int64", array=np.where(lowest < 0, values.argmin(axis=-1), -1).astype(np.int64))
    except Exception:  # an unusual gradient must not break the user's backward
        kept.pop("target", None)
    return gradient
