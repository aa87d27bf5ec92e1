"""Preallocated places that a compiled graph folds statistics into: a tensor in, nine numbers, read once a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hypocenter.nouns import Summary

N_SLOTS = 1024  # per block; a block is 64 KiB
_N_SUMS, _N_PEAKS = 6, 3  # finite, NaN, +inf, -inf, sum, sum of squares; max, -min, dtype
_DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
)  # told by position: a graph can hold numbers only
FULL_PRECISION = _DTYPES[:2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Two vectors, each with a version counter of its own (`.data`): else any graph break would make backward fail."""

    index: int
    sums: Tensor
    peaks: Tensor


class Slots:
    """Hands out slots and reads all of them in one transfer per device."""

    def __init__(self) -> None:
        self._blocks: dict[torch.device, list[tuple[Tensor, Tensor]]] = {}
        self._slots: list[Slot] = []
        self._positions: list[tuple[torch.device, int, int]] = []

    def take(self, device: torch.device) -> Slot:
        """A fresh slot on the device."""
        dtype = torch.float32 if device.type == "mps" else torch.float64  # the one device without float64
        blocks = self._blocks.setdefault(device, [])
        used = sum(position[0] == device for position in self._positions)
        if used == N_SLOTS * len(blocks):
            blocks.append(
                (
                    torch.zeros(N_SLOTS, _N_SUMS, dtype=dtype, device=device),
                    torch.full((N_SLOTS, _N_PEAKS), -math.inf, dtype=dtype, device=device),
                )
            )
        block, row = used // N_SLOTS, used % N_SLOTS
        sums, peaks = blocks[block]
        slot = Slot(index=len(self._slots), sums=sums.data[row], peaks=peaks.data[row])
        for vector in (slot.sums, slot.peaks):
            torch._dynamo.mark_static_address(vector)  # else CUDA graphs are given up for a graph that writes to it
        self._slots.append(slot)
        self._positions.append((device, block, row))
        return slot

    def drain(self) -> dict[int, tuple[torch.dtype, Summary]]:
        """index -> (dtype, Summary) of the slots that were written to since the last call, which start anew."""
        found: dict[int, tuple[torch.dtype, Summary]] = {}
        with torch.no_grad():
            hosts = {
                device: [torch.cat(block, dim=1).tolist() for block in blocks]
                for device, blocks in self._blocks.items()
            }
            for blocks in self._blocks.values():
                for sums, peaks in blocks:
                    sums.zero_()
                    peaks.fill_(-math.inf)
        for index, (device, block, row) in enumerate(self._positions):
            *numbers, code = hosts[device][block][row]
            summary = _summary(numbers)
            if summary.n:
                found[index] = (_DTYPES[int(code)], summary)
        return found


def _summary(numbers: list[float]) -> Summary:
    n_finite, n_nan, n_posinf, n_neginf, total, squares, largest, negated_smallest = numbers
    has_any = n_finite > 0
    absmax = max(largest, negated_smallest) if has_any else 0.0
    return Summary(
        n=int(n_finite + n_nan + n_posinf + n_neginf),
        n_nan=int(n_nan),
        n_posinf=int(n_posinf),
        n_neginf=int(n_neginf),
        min=-negated_smallest if has_any else None,
        max=largest if has_any else None,
        absmax=absmax,
        sum=total if math.isfinite(total) else 0.0,
        sumsq=squares if math.isfinite(squares) else n_finite * absmax * absmax,  # beyond float32: an upper bound
    )


def fold(tensor: Tensor, sums: Tensor, peaks: Tensor) -> None:
    """Merge a tensor's statistics into a slot, with tensor operators only.

    Widened first: a reduction of bfloat16 made inductor give up vector code for its neighbours, and other bits.
    """
    wide = tensor.detach()
    wide = wide if wide.dtype == torch.float64 else wide.to(torch.float32)
    finite = torch.isfinite(wide)
    values = torch.where(finite, wide, 0.0)
    sums.add_(
        torch.stack(
            [
                finite.sum().to(sums.dtype),
                torch.isnan(wide).sum().to(sums.dtype),
                (wide == math.inf).sum().to(sums.dtype),
                (wide == -math.inf).sum().to(sums.dtype),
                values.sum().to(sums.dtype),
                (values * values).sum().to(sums.dtype),
            ]
        )
    )
    largest = torch.where(finite, wide, -math.inf).amax().to(peaks.dtype)
    negated_smallest = torch.where(finite, -wide, -math.inf).amax().to(peaks.dtype)
    code = torch.full_like(largest, float(_DTYPES.index(tensor.dtype)))
    peaks.copy_(torch.maximum(peaks, torch.stack([largest, negated_smallest, code])))


def can_fold(tensor: Tensor, sums: Tensor) -> bool:
    """Whether `fold` takes this tensor into a slot with these sums. Decided while tracing: no values are looked at."""
    return tensor.dtype in _DTYPES and tensor.device == sums.device and tensor.numel() > 0


@torch.library.custom_op("hypocenter::note", mutates_args={"sums", "peaks"})
def _note(tensor: Tensor, sums: Tensor, peaks: Tensor) -> None:
    fold(tensor, sums, peaks)


@_note.register_fake
def _(tensor: Tensor, sums: Tensor, peaks: Tensor) -> None:
    return None


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, sums, peaks, grad_sums, grad_peaks):  # type: ignore[no-untyped-def, override]
        ctx.slots = (grad_sums, grad_peaks)
        torch.ops.hypocenter.note(tensor.detach(), sums, peaks)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def, override]
        torch.ops.hypocenter.note(grad, *ctx.slots)
        return grad, None, None, None, None


def fold_through(tensor: Tensor, sums: Tensor, peaks: Tensor, grad_sums: Tensor, grad_peaks: Tensor) -> Tensor:
    """The same tensor as a view, with its statistics and later its gradient's folded into two slots."""
    return _Through.apply(tensor, sums, peaks, grad_sums, grad_peaks)  # type: ignore[no-any-return]
