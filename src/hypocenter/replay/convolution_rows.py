"""Parts of a convolution and of its gradients, done again without the rest: samples, or channels over all samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from hypocenter.replay.effort import Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """A convolution, or the gradient of what it reads, sample by sample."""

    func: Any
    args: tuple[Any, ...]
    n_sliced: int  # leading arguments that have a row for each sample
    whole: Effort
    is_of_magnitudes: bool = False

    def of_magnitudes(self) -> Samples:
        """Return the same computation with the magnitudes of all values."""
        return replace(self, is_of_magnitudes=True)

    @property
    def n(self) -> int:
        """The number of samples."""
        return self.args[0].shape[0]

    @property
    def of_one(self) -> Effort:
        """The effort for one sample."""
        return Effort(flops=self.whole.flops / self.n, bytes=self.whole.bytes / self.n)

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute these samples, one after the other."""
        rest = [_moved(t, dtype, device, self.is_of_magnitudes) for t in self.args[self.n_sliced :]]
        found = []
        for i in rows.tolist():
            out = self.func(
                *(_moved(t[i : i + 1], dtype, device, self.is_of_magnitudes) for t in self.args[: self.n_sliced]), *rest
            )
            found.append((out[0] if isinstance(out, tuple) else out).reshape(1, -1))
        return torch.cat(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradient:
    """The gradient of a convolution's weight: indices of its first dimension, each summed over samples one by one.

    That dimension goes over the channels of the result, and of what is read where the convolution is transposed.
    """

    func: Any
    args: tuple[Any, ...]
    whole: Effort
    is_of_magnitudes: bool = False

    def of_magnitudes(self) -> WeightGradient:
        """Return the same computation with the magnitudes of all values."""
        return replace(self, is_of_magnitudes=True)

    @property
    def n(self) -> int:
        """The number of indices of the weight's first dimension."""
        return self.args[2].shape[0]

    @property
    def of_one(self) -> Effort:
        """The effort for one index; what a sample unfolds to does not depend on how many there are."""
        return Effort(flops=self.whole.flops / self.n, bytes=self.whole.bytes / self.args[0].shape[0])

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute the gradient at these indices."""
        _, _, weight, _, *rest, transposed, padding, groups, _ = self.args
        here, across = (1, 0) if transposed else (0, 1)  # which of (grad, x) has a channel for each index
        rows, of_group = rows.cpu(), self.n // groups
        found = torch.zeros(len(rows), weight[0].numel(), dtype=dtype or weight.dtype, device=device)
        for group in (rows // of_group).unique().tolist():
            at = (rows // of_group == group).nonzero()[:, 0]
            n = self.args[across].shape[1] // groups
            part = _moved(weight[rows[at].to(weight.device)], dtype, device, self.is_of_magnitudes)
            for i in range(self.args[0].shape[0]):
                pair = [self.args[0][i : i + 1], self.args[1][i : i + 1]]
                pair[here] = pair[here][:, rows[at].to(pair[here].device)]
                pair[across] = pair[across][:, group * n : (group + 1) * n]
                grad, x = (_moved(t, dtype, device, self.is_of_magnitudes) for t in pair)
                out = self.func(grad, x, part, None, *rest, transposed, padding, 1, [False, True, False])[1]
                found[at] += out.reshape(len(at), -1)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class BiasGradient:
    """The gradient of a convolution's bias: sums of a channel over samples and places."""

    grad: torch.Tensor
    is_of_magnitudes: bool = False

    def of_magnitudes(self) -> BiasGradient:
        """Return the same computation with the magnitudes of all values."""
        return replace(self, is_of_magnitudes=True)

    @property
    def n(self) -> int:
        """The number of channels."""
        return self.grad.shape[1]

    @property
    def of_one(self) -> Effort:
        """The effort for one channel."""
        n = self.grad.numel() / self.n
        return Effort(flops=n, bytes=8.0 * n)

    def done(self, rows: torch.Tensor, dtype: torch.dtype | None, device: torch.device) -> torch.Tensor:
        """Compute these channels, one after the other."""
        each = (_moved(self.grad[:, channel], dtype, device, self.is_of_magnitudes).sum() for channel in rows.tolist())
        return torch.stack(tuple(each))[:, None]


Part = Samples | WeightGradient | BiasGradient


def part_of_gradient(func: Any, args: Any, whole: Effort, result: int) -> Part | None:
    """Return how to do parts of a result of `convolution_backward` again; None where that is not known."""
    grad, x, weight = args[:3]
    if not all(isinstance(t, torch.Tensor) and t.numel() for t in (grad, x, weight)) or x.dim() < 3:
        return None
    grad, x, weight = grad.detach(), x.detach(), weight.detach()
    if result == 0:
        rest = (weight, None, *args[4:-1], [True, False, False])
        return Samples(func=func, args=(grad, x, *rest), n_sliced=2, whole=whole)
    if result == 1:
        return WeightGradient(func=func, args=(grad, x, weight, *args[3:]), whole=whole)
    return BiasGradient(grad=grad)


def _moved(value: Any, dtype: torch.dtype | None, device: torch.device, is_of_magnitudes: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.to(device, dtype or value.dtype)
    return value.abs() if is_of_magnitudes else value
