"""`--initial-weights PATH`: the model starts from these weights; all of its parameters, or the program is stopped.

They are put in when a model is first called in training: it is complete then, wrapped and on its device, and no
optimizer has any state. Copies in float32 that an optimizer has made of the parameters before are made again.
Anything else that the program derived from the first weights before (an EMA of them) keeps what it was made from.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hypocenter.compare.weights.checkpoint import Box
from hypocenter.compare.weights.checkpoint import Tensor as Stored
from hypocenter.compare.weights.imposing import Wanted
from hypocenter.session.imposed.laid_out import Held, LaidOut, buffers_of, heads_of
from hypocenter.session.imposed.refuse import ImposeError
from hypocenter.session.imposed.weights_from import OPTION, WeightsFrom
from hypocenter.tap.names import NameMap

_HALF = (torch.float16, torch.bfloat16)
_REFRESH = {"megatron": "reload_model_params", "deepspeed": "refresh_fp32_params"}


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
        """Give the parameters of this module's model their values: it is about to be called in training.

        Raises:
            HypocenterError: not every parameter of its model can be given a value.
        """
        root = self._laid_out.root_of(module)
        held = [one for one in self._laid_out.parameters(root, OPTION) if id(one.parameter) not in self._loaded]
        if held:
            self._load(root, held)

    def before_backward(self) -> None:
        """Check that no weights are left over, as all models that a micro-batch calls have been called.

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
    """Read a part of a stored tensor to the host, in its own format."""
    raw = view.read(box)
    shape, flat = raw.shape, np.array(raw).reshape(-1)  # a copy: what is mapped from a file cannot be written to
    wanted: torch.dtype = getattr(torch, view.dtype)
    if flat.dtype.kind == "u" and wanted.is_floating_point:  # bits of a format that NumPy has not
        flat = flat.view(f"i{flat.dtype.itemsize}")
    return torch.from_numpy(flat).view(wanted).reshape(shape)


# Megatron-Core and DeepSpeed have a method for that, as they need it when they load a checkpoint. Copies of other
# optimizers (apex, accelerate's and people's own) are known by their values: a tensor of an optimizer's that belongs to
# no model, has the shape of a parameter and, cast to its format, the very same values.
"""Top package -> the method of its optimizers that copies the model's parameters."""
_RUN = 16  # values of a parameter that are looked for in a flat tensor
_TRIED = 4  # parameters that are looked for: a rank's flat tensor may hold a part of them only


class MasterCopies:
    """Copies of the parameters that optimizers hold in float32; none in a model without half precision.

    Args:
        parameters: those in half precision.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._of_frameworks: list[tuple[Any, str]] = []
        self._pairs: list[tuple[Tensor, Tensor]] = []
        if self._parameters:
            self._find()

    def refresh(self) -> int:
        """Make the copies again from the parameters as they are now, and return how many there are.

        Raises:
            ImposeError: an optimizer holds copies that nobody knows how to make again.
        """
        with torch.no_grad():
            for copy, parameter in self._pairs:
                copy.copy_(parameter)
            for optimizer, method in self._of_frameworks:
                getattr(optimizer, method)()
        return len(self._pairs) + len(self._of_frameworks)

    def _find(self) -> None:
        ours = {id(parameter) for parameter in self._parameters}
        optimizers: list[torch.optim.Optimizer] = []
        gc.collect()  # one that the program has let go of trains nothing
        for thing in gc.get_objects():
            kind = type(thing)
            method = _REFRESH.get(str(kind.__module__).partition(".")[0])  # of some classes it is a descriptor
            if method is not None and hasattr(kind, method) and hasattr(kind, "step"):
                self._of_frameworks.append((thing, method))
            elif issubclass(kind, torch.optim.Optimizer):
                optimizers.append(thing)
        if self._of_frameworks:
            return
        by_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
        for parameter in self._parameters:
            by_shape[tuple(parameter.shape)].append(parameter)
        for optimizer in optimizers:
            held = [p for group in optimizer.param_groups for p in group["params"]]
            if any(id(p) in ours for p in held):
                continue
            found = [(p, of) for p in held if (of := _copied(p, by_shape)) is not None]
            if not found and any(_holds_one(flat, self._parameters) for flat in held):
                raise _unknown(optimizer)
            self._pairs += found


def _copied(copy: Tensor, by_shape: dict[tuple[int, ...], list[Tensor]]) -> Tensor | None:
    """Return the parameter that this is a copy of; None if it is a copy of none."""
    if copy.dtype != torch.float32:
        return None
    for parameter in by_shape.get(tuple(copy.shape), ()):
        if copy.device == parameter.device and torch.equal(copy.detach().to(parameter.dtype), parameter.detach()):
            by_shape[tuple(copy.shape)] = [p for p in by_shape[tuple(copy.shape)] if p is not parameter]
            return parameter
    return None


def _holds_one(flat: Tensor, parameters: Sequence[Tensor]) -> bool:
    """Return whether a flat float32 tensor holds the values of one of the parameters, one after another."""
    if flat.dtype != torch.float32 or flat.dim() != 1:
        return False
    with torch.no_grad():
        for parameter in sorted(parameters, key=lambda p: -p.numel())[:_TRIED]:
            wanted = parameter.detach().flatten()[:_RUN]
            n = flat.numel() - wanted.numel() + 1
            if n < 1 or flat.device != wanted.device or not bool(wanted.count_nonzero()):
                continue
            values = flat.detach().to(parameter.dtype)
            here = torch.ones(n, dtype=torch.bool, device=flat.device)
            for place in range(wanted.numel()):
                here &= values[place : place + n] == wanted[place]
            if bool(here.any()):
                return True
    return False


def _unknown(optimizer: Any) -> ImposeError:
    return ImposeError(
        f"{type(optimizer).__name__} trains float32 copies that cannot be made again", where="--initial-weights",
        why="they were made from the weights that the program began with, and would put these back at the first step",
        fix="load the weights in the program, before the optimizer is made",
    )  # fmt: skip
