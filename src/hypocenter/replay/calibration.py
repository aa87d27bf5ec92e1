"""A replay in which what other good software may round otherwise is off by one rounding: how far apart good runs are.

Other kernels, thread counts, attention back-ends, splits over ranks and devices differ in the order in which they add
up. So operands and results of every operation that adds up (products of matrices, sums, norms, softmax, attention,
convolutions, losses; in forward and backward alike) become x + x·u·r with r uniform in (-1, 1) and u of x's own format.
Element-wise operations are not touched: they are the same everywhere, and what rounds an intermediate result to an
integer (T5's relative positions) must not be pushed over the edge.

UNIT was measured (Llama and T5 of 6 layers, width 128, CPU; real differences: attention written out, and every
Linear's sum split in two as by tensor parallelism). Real over calibrated distance at step 0, over all outputs, their
gradients and weight gradients:

| format | u | median | largest of 579 (Llama) or 2,130 (T5) spots |
| --- | --- | --- | --- |
| float32 | 2^-24 (a first version, exact distances) | 0.8 to 1.1 | 1.4 |
| float32 | 2^-23 (by sketches) | 0.6 to 0.9 | 1.02 |
| bfloat16 | 2^-8 (by sketches) | 0.4 to 0.7 | 1.1 |

float32 adds up in its own format, so one unit roundoff (2^-24) is too little; the short formats add up in float32 and
round once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hypocenter.replay import roundoff
from hypocenter.replay.roundoff import SAMPLES
from hypocenter.tap.collective_ops import is_wrapped
from hypocenter.tap.dispatch import Mode, declared

__all__ = ["SAMPLES", "UNIT", "Rounding", "adds_up", "off_by_one_rounding"]

UNIT: dict[torch.dtype, float] = {getattr(torch, name): unit for name, unit in roundoff.UNIT.items()}
_EXACT_UP_TO: dict[torch.dtype, float] = {getattr(torch, name): bound for name, bound in roundoff.EXACT_UP_TO.items()}

_PLAIN = frozenset({Tensor, torch.nn.Parameter})
_SUMS = frozenset({
    "mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "addr", "dot", "vdot", "matmul", "linear", "einsum",
    "sum", "mean", "var", "std", "prod", "norm", "softmax", "logsumexp", "loss", "entropy", "attention", "attn",
    "convolution", "conv2d", "conv3d", "bag", "avg", "pool2d", "pool3d", "upsample", "lstm", "gru", "rnn", "cdist",
    "fft",
})  # fmt: skip
"""Words in the names of operations that add up."""
_PAIRS = (frozenset({"embedding", "backward"}), frozenset({"index", "add"}), frozenset({"scatter", "add"}))
_NOT = frozenset({"max"})  # max_pool2d picks, and gives indices


class Rounding(Mode):
    """Perturb values by rounding while it is entered. It has its own generator, and writes to no tensor of the program.

    Args:
        seed: another one gives another sample.
        on_restart: told when the replay begins again, because the first try was impossible.
    """

    def __init__(self, seed: int, on_restart: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._seed, self._on_restart = seed, on_restart
        self._generators: dict[torch.device, torch.Generator] = {}

    def restart(self) -> None:
        """Begin again with the same random numbers."""
        self._generators.clear()
        if self._on_restart is not None:
            self._on_restart()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_wrapped(types):
            return NotImplemented  # a DTensor computes with plain tensors inside
        if not adds_up(func):
            return func(*args, **(kwargs or {}))
        arguments = declared(func)
        given = [
            self._off(arg) if isinstance(arg, Tensor) and _is_read_only(arguments, index) else arg
            for index, arg in enumerate(args)
        ]
        out = func(*given, **(kwargs or {}))
        if isinstance(out, (tuple, list)):
            return type(out)(self._off(each) if isinstance(each, Tensor) else each for each in out)
        return self._off(out) if isinstance(out, Tensor) else out

    def _off(self, tensor: Tensor) -> Tensor:
        if type(tensor) not in _PLAIN or tensor.dtype not in UNIT or tensor.numel() == 0 or tensor.is_meta:
            return tensor
        if tensor.layout is not torch.strided:
            return tensor
        generator = self._generators.get(tensor.device)
        if generator is None:
            generator = self._generators[tensor.device] = torch.Generator(tensor.device).manual_seed(self._seed)
        return off_by_one_rounding(tensor, generator)


def off_by_one_rounding(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return x + x·u·r, rounded to the tensor's format; whole numbers and what would overflow stay as they are."""
    random = torch.rand(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)
    moved = torch.addcmul(tensor, tensor, random.mul_(2.0).sub_(1.0), value=UNIT[tensor.dtype])
    stays = (tensor == tensor.round()) & (tensor.abs() <= _EXACT_UP_TO[tensor.dtype])
    return torch.where(stays.logical_or_(~moved.isfinite()), tensor, moved)


@functools.lru_cache(maxsize=4096)
def adds_up(func: Any) -> bool:
    """Return whether an operation adds up in an order that its kernel chooses, and its results are new tensors."""
    schema = func._schema
    if any(each.alias_info is not None for each in schema.returns):
        return False
    words = frozenset(schema.name.partition("::")[2].split("_"))
    return not words & _NOT and bool(words & _SUMS or any(pair <= words for pair in _PAIRS))


def _is_read_only(declared: Any, index: int) -> bool:
    """Return whether an argument is only read. Running statistics are written to although not every schema says so."""
    if index >= len(declared):
        return True
    alias, name = declared[index].alias_info, declared[index].name
    return (alias is None or not alias.is_write) and not name.startswith("running_")
