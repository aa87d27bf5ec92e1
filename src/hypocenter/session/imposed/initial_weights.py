"""`--initial-weights PATH`: the model starts from these weights; all of its parameters, or the program is stopped.

They are put in when a model is first called in training: it is complete then, wrapped and on its device, and no
optimizer has any state. Copies in float32 that an optimizer has made of the parameters before are made again.
Anything else that the program derived from the first weights before (an EMA of them) keeps what it was made from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hypocenter.compare.pairing.manual_map import ManualMap, read_map
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.imposing import Wanted, given_to, left_over
from hypocenter.compare.weights.tensor import Box
from hypocenter.compare.weights.tensor import Tensor as Stored
from hypocenter.session.imposed.laid_out import Held, LaidOut, buffers_of, heads_of
from hypocenter.session.imposed.master_copies import MasterCopies
from hypocenter.tap.names import NameMap

OPTION = "--initial-weights"
_HALF = (torch.float16, torch.bfloat16)


class InitialWeights:
    """Puts a checkpoint's values into the models that the program trains.

    Args:
        path: of the checkpoint.
        map_path: of a map file, or None.
        told: a line for run.json.
    """

    def __init__(
        self,
        path: str,
        map_path: str | None,
        names: NameMap,
        laid_out: LaidOut,
        *,
        warn: Callable[[str], None],
        told: Callable[[str], None],
    ) -> None:
        self._source = read_checkpoint(path)
        self._manual: ManualMap | None = read_map(Path(map_path)) if map_path else None
        self._names, self._laid_out, self._warn, self._told = names, laid_out, warn, told
        self._loaded: set[int] = set()  # parameters
        self._unused: set[str] | None = None
        self._is_part = False

    def before_forward(self, module: nn.Module) -> None:
        """A module is about to be called in training.

        Raises:
            HypocenterError: not every parameter of its model can be given a value.
        """
        root = self._laid_out.root_of(module)
        held = [one for one in self._laid_out.parameters(root, OPTION) if id(one.parameter) not in self._loaded]
        if held:
            self._load(root, held)

    def before_backward(self) -> None:
        """All models that a micro-batch calls have been called.

        Raises:
            CheckpointError: weights are left over.
        """
        if self._unused and not self._is_part:
            raise left_over(sorted(self._unused), self._source.path)
        self._unused = None

    def _load(self, root: nn.Module, held: Sequence[Held]) -> None:
        buffers = buffers_of(root, self._names)
        self._is_part = self._is_part or bool(self._loaded) or self._laid_out.is_stage
        given = given_to(
            [Wanted(names=one.names, shape=one.shape, dtype=one.dtype) for one in held],
            self._source,
            buffers=buffers,
            settings=heads_of(root),
            manual=self._manual,
            is_part=self._is_part,
        )
        masters = MasterCopies([one.parameter for one in held if one.parameter.dtype in _HALF])
        casts: Counter[str] = Counter()
        with torch.no_grad():
            for one in held:
                view = given.views[one.names[0]]
                one.local.copy_(as_torch(view, one.box))
                if view.dtype != one.dtype:
                    casts[f"{view.dtype} to {one.dtype}"] += 1
            for name, buffer in buffers.items():
                view = given.buffers.get(name)
                if view is not None and view.shape == tuple(buffer.shape):
                    buffer.copy_(as_torch(view, tuple((0, n) for n in view.shape)))
        n_copies = masters.refresh()
        self._loaded |= {id(one.parameter) for one in held}
        unused = set(given.unused)
        self._unused = unused if self._unused is None else self._unused & unused
        self._say(given.how, given.notes, len(held), casts, n_copies)

    def _say(self, how: str, notes: Sequence[str], n: int, casts: Counter[str], n_copies: int) -> None:
        words = f"initial weights of {n} parameters from {self._source.path} ({how})"
        words += "".join(f"; {count} cast from {text}" for text, count in casts.items())
        words += f"; {n_copies} float32 copies of an optimizer made again" if n_copies else ""
        self._told(words)
        for text in notes:
            self._warn(f"initial weights: {text}")


def as_torch(view: Stored, box: Box) -> Tensor:
    """A part of a stored tensor, on the host, in its own format."""
    raw = view.read(box)
    shape, flat = raw.shape, np.array(raw).reshape(-1)  # a copy: what is mapped from a file cannot be written to
    wanted: torch.dtype = getattr(torch, view.dtype)
    if flat.dtype.kind == "u" and wanted.is_floating_point:  # bits of a format that NumPy has not
        flat = flat.view(f"i{flat.dtype.itemsize}")
    return torch.from_numpy(flat).view(wanted).reshape(shape)
