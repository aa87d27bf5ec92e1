"""`--initial-weights PATH`: the model starts from these weights; all of its parameters, or the program is stopped.

They are put in when a model is first called in training: it is complete then, wrapped and on its device, and no
optimizer has any state. Copies in float32 that an optimizer has made of the parameters before are made again.
Anything else that the program derived from the first weights before (an EMA of them) keeps what it was made from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hypocenter.compare.weights.checkpoint import Box
from hypocenter.compare.weights.checkpoint import Tensor as Stored
from hypocenter.compare.weights.imposing import Wanted
from hypocenter.session.imposed.laid_out import Held, LaidOut, buffers_of, heads_of
from hypocenter.session.imposed.master_copies import MasterCopies
from hypocenter.session.imposed.weights_from import OPTION, WeightsFrom
from hypocenter.tap.names import NameMap

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
        self._weights = WeightsFrom(path, map_path, warn=warn, told=told)
        self._names, self._laid_out = names, laid_out
        self._loaded: set[int] = set()  # parameters

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
        self._weights.nothing_is_left()

    def _load(self, root: nn.Module, held: Sequence[Held]) -> None:
        buffers, weights = buffers_of(root, self._names), self._weights
        weights.is_part = weights.is_part or bool(self._loaded) or self._laid_out.is_stage
        wanted = [Wanted(names=one.names, shape=one.shape, dtype=one.dtype) for one in held]
        given = weights.to(wanted, buffers=buffers, settings=heads_of(root))
        masters = MasterCopies([one.parameter for one in held if one.parameter.dtype in _HALF])
        with torch.no_grad():
            for one in held:
                one.local.copy_(as_torch(given.views[one.names[0]], one.box))
            for name, buffer in buffers.items():
                view = given.buffers.get(name)
                if view is not None and view.shape == tuple(buffer.shape):
                    buffer.copy_(as_torch(view, tuple((0, n) for n in view.shape)))
        self._loaded |= {id(one.parameter) for one in held}
        weights.say(given, wanted, masters.refresh())


def as_torch(view: Stored, box: Box) -> Tensor:
    """A part of a stored tensor, on the host, in its own format."""
    raw = view.read(box)
    shape, flat = raw.shape, np.array(raw).reshape(-1)  # a copy: what is mapped from a file cannot be written to
    wanted: torch.dtype = getattr(torch, view.dtype)
    if flat.dtype.kind == "u" and wanted.is_floating_point:  # bits of a format that NumPy has not
        flat = flat.view(f"i{flat.dtype.itemsize}")
    return torch.from_numpy(flat).view(wanted).reshape(shape)
