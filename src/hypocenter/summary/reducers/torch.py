"""torch tensor -> Summary: at once and exact (`summarize`), or on the hot path without waiting (`TorchReducer`).

Summaries of tensors on an accelerator: kernels now, one transfer of small results for all of them later.

Nothing refers to the user's tensor after `add`, so its memory is freed and reused when the program says, and a later
in-place change is not seen. All results are bytes of one concatenation, so that a step costs one transfer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from hypocenter.formats import FORMATS
from hypocenter.nouns import Summary, replace
from hypocenter.summary.exponents import BINARY32, tally
from hypocenter.summary.reducers.sampling import SIZE, SMALL, Moments, assembled
from hypocenter.summary.reducers.torch_exact import CHUNK, exact, smallest_normal_exponent
from hypocenter.summary.reducers.torch_samples import Samples, spread
from hypocenter.summary.reducers.torch_sketch import Placement, sketch_of
from hypocenter.summary.reducers.torch_values import in_a_row, is_capturing, local_values, n_elements

Histogram = Literal["sample", "full"]
_FAST = frozenset((torch.float32, torch.bfloat16, torch.float16))
_WHOLE = (Tensor, torch.nn.Parameter)
_INF = math.inf
_TRUSTED_RMS = 1e-15  # below it squares come near the smallest float32 (1.2e-38) and lose bits: sum them in float64
_FLOAT32 = frozenset((torch.float32, torch.bfloat16, torch.float16))
_KEPT = 1 << 16  # elements: integers and float64 up to this are copied and summarised exactly after the transfer
_ROW_BYTES = 28  # three int32 counts, float32 min, max, scaled sum and norm
# The smallest and the largest power of two that float32 holds as a normal number.
_LEAST_UNIT, _MOST_UNIT = FORMATS["float32"].smallest_normal, 2.0 ** FORMATS["float32"].largest_exponent


def summarize(
    t: Tensor, *, histogram: Histogram = "full", sketch: bool = False, place: Placement | None = None
) -> Summary:
    """Summarise a tensor of any dtype, layout and device now; on an accelerator this waits for it.

    Never raises, moves, changes or keeps the tensor; what cannot be read (meta, fake, quantized) gives `n` only.

    Args:
        histogram: "sample" looks at a fixed sample of the elements for the histogram's fields, as TorchReducer does.
        sketch: also sketch it, as a whole tensor or, with `place`, as a shard of one.
    """
    if histogram == "sample":
        reducer = TorchReducer(sketch=sketch)
        reducer.add(t, place)
        return reducer.drain()[0]
    try:
        if (values := local_values(t)) is None or is_capturing(values):
            return Summary(n=n_elements(t))
        whole = exact(values)
        return replace(whole, sketch=tuple(sketch_of(t, place).tolist())) if sketch else whole
    except Exception:  # a summary is never worth the user's run
        return Summary(n=n_elements(t))


class TorchReducer:
    """Summarise many tensors cheaply: `add` each, `drain` once a step. Not thread-safe.

    On an accelerator `add` only launches kernels, which keep no reference to the tensor, and `drain` makes one transfer
    per device. Counts of non-finite values and the extremes are exact. Sums are float32 sums of at most 2**19 elements
    each, added in float64: `sumsq` is good to 1e-5 as a rule, and to 2e-3 when all values are the same. The fields of
    the histogram come from a fixed sample of SIZE elements (torch_samples), the same for the same shape, unless
    `histogram="full"`. On the CPU everything is exact for tensors of at most SMALL elements, integers, bool, float64.

    `histogram="full"` waits for an accelerator in `add`; `sketch=True` multiplies matrices there: not for every step.
    """

    def __init__(self, histogram: Histogram = "sample", sketch: bool = False, *, defer_cpu: bool = False) -> None:
        self._full = histogram == "full"
        self._sketch = sketch
        self._defer_cpu = defer_cpu  # treat the CPU as an accelerator: for tests
        self._samples = Samples()
        self._reset()

    def _reset(self) -> None:
        self._done: list[Summary | None] = []
        self._deferred: dict[torch.device, Deferred] = {}
        self._sketches: list[tuple[int, Tensor]] = []

    def add(self, t: Tensor, place: Placement | None = None, *, sketch: bool = True) -> int:
        """Take in a tensor as it is now and return its ticket: the index of its Summary in `drain()`.

        Args:
            place: what part of a larger tensor it is.
            sketch: False: not this one, although the reducer sketches.
        """
        ticket = len(self._done)
        self._done.append(None)
        try:
            self._done[ticket] = self._reduce(t, ticket)
            if self._sketch and sketch and local_values(t) is not None:
                self._sketches.append((ticket, sketch_of(t, place)))
        except Exception:  # a summary is never worth the user's run
            self._done[ticket] = Summary(n=n_elements(t))
        return ticket

    def _reduce(self, t: Tensor, ticket: int) -> Summary | None:
        """Summarise now if that is cheap and does not wait; else leave a promise with _samples or _deferred."""
        if type(t) not in _WHOLE or t.dtype not in _FAST or not t.is_cpu or self._full or self._defer_cpu:
            return self._reduce_any(t, ticket)
        if t.layout is not torch.strided or is_functorch_wrapped_tensor(t):
            return self._reduce_any(t, ticket)
        n = t.numel()
        if n <= SMALL:
            return self._samples.add_whole(ticket, t.detach(), n) if n else Summary()
        dense = t.detach() if t.is_contiguous() else in_a_row(t.detach())
        return self._samples.add_spread(ticket, dense, n, moments_of(dense, n))

    def _reduce_any(self, t: Tensor, ticket: int) -> Summary | None:
        if (values := local_values(t)) is None or is_capturing(values):
            return Summary(n=n_elements(t))
        if self._full or (values.is_cpu and not (self._defer_cpu or values.dtype in _FAST)):
            return exact(values)
        if values.is_cpu and not self._defer_cpu:
            return self._reduce(values, ticket)
        if not values.numel():
            return Summary()
        self._deferred.setdefault(values.device, Deferred()).add(ticket, in_a_row(values))
        return None

    def drain(self) -> list[Summary]:
        """Return the Summary of every ticket in order, and start anew."""
        done, deferred, sketches = self._done, self._deferred, self._sketches
        self._reset()
        for ticket, summary in self._samples.drain():
            done[ticket] = summary
        for promises in deferred.values():
            for ticket, summary in promises.summaries():
                done[ticket] = summary
        result = [summary or Summary() for summary in done]
        for ticket, values in _fetched(sketches):
            result[ticket] = replace(result[ticket], sketch=values)
        return result


def _fetched(sketches: list[tuple[int, Tensor]]) -> list[tuple[int, tuple[float, ...]]]:
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for ticket, values in sketches:
        by_device.setdefault(values.device, []).append((ticket, values))
    return [
        (ticket, tuple(row))
        for held in by_device.values()
        for (ticket, _), row in zip(held, torch.stack([values for _, values in held]).tolist(), strict=True)
    ]


def moments_of(dense: Tensor, n: int) -> Moments:
    """Return the moments of n float16, bfloat16 or float32 values that lie one after the other in memory.

    A long tensor is taken in pieces: the second sweep then finds the piece in cache, and float32 sums stay short.
    """
    if n <= 2 * CHUNK:
        return _chunk(dense, n)
    return _added([_chunk(chunk, chunk.numel()) for chunk in dense.view(-1).split(CHUNK)])


def _chunk(x: Tensor, n: int) -> Moments:
    """One sweep for each. NaN and infinities show in the extremes.

    amin and amax are together faster than aminmax in float32, and slower in float16 and bfloat16.
    """
    lows, highs = (torch.amin(x), torch.amax(x)) if x.dtype is torch.float32 else torch.aminmax(x)
    low, high = lows.item(), highs.item()
    if not (low > -_INF and high < _INF):  # also when they are NaN
        return _finite_part(x)
    total = torch.sum(x, dtype=torch.float32)
    norm = torch.linalg.vector_norm(x, dtype=torch.float32).item()
    moments = Moments(low, high, total.item(), norm * norm)
    if not n * _TRUSTED_RMS**2 <= moments.squares < _INF and (low or high):
        return moments._replace(**_wide_sums(x))
    return moments


def _finite_part(x: Tensor) -> Moments:
    n_nan, n_posinf, n_neginf = (int(is_one.sum().item()) for is_one in (x.isnan(), x == _INF, x == -_INF))
    low, high = x.nan_to_num(_INF, _INF, _INF).amin().item(), x.nan_to_num(-_INF, -_INF, -_INF).amax().item()
    sums = _wide_sums(x.nan_to_num(0.0, 0.0, 0.0))
    return Moments(low, high, sums["total"], sums["squares"], n_nan, n_posinf, n_neginf)


def _wide_sums(x: Tensor) -> dict[str, float]:
    """Sums in float64, where float32 ones overflow or lose the squares they add up."""
    wide = x.to(torch.float64)
    return {"total": wide.sum().item(), "squares": (wide * wide).sum().item()}


def _added(parts: list[Moments]) -> Moments:
    return Moments(
        min(part.low for part in parts),
        max(part.high for part in parts),
        sum(part.total for part in parts),
        sum(part.squares for part in parts),
        sum(part.n_nan for part in parts),
        sum(part.n_posinf for part in parts),
        sum(part.n_neginf for part in parts),
    )


@dataclass(slots=True)
class _Promise:
    ticket: int
    n: int
    dtype: torch.dtype
    payload: Tensor  # uint8, on the device
    is_copy: bool


@dataclass(slots=True)
class Deferred:
    """What one device still owes."""

    _promises: list[_Promise] = field(default_factory=list)

    def add(self, ticket: int, row: Tensor) -> None:
        """Launch the kernels for non-empty values along one axis.

        Integers and float64 of more than 65,536 elements go through float32: their extremes are rounded to it.
        """
        if row.dtype not in _FLOAT32 and row.dtype.itemsize > 1 and row.numel() <= _KEPT:
            payload, is_copy = row.clone().view(torch.uint8), True
        else:
            payload, is_copy = _reduced(row.to(torch.float32)), False
        self._promises.append(_Promise(ticket, row.numel(), row.dtype, payload, is_copy))

    def summaries(self) -> Iterator[tuple[int, Summary]]:
        """Wait for the device and yield (ticket, Summary) of all that was added."""
        if not self._promises:
            return
        data = torch.cat([promise.payload for promise in self._promises]).cpu()
        start = 0
        for promise in self._promises:
            part = data[start : start + promise.payload.numel()].clone()  # aligned for a wider view
            start += promise.payload.numel()
            yield promise.ticket, exact(part.view(promise.dtype)) if promise.is_copy else _read(part.numpy(), promise)


def _reduced(x: Tensor) -> Tensor:
    """Counts, extremes, scaled sums and the sample of float32 values as bytes; no step waits for the device.

    Dividing by the power of two below the largest magnitude changes no bit of a value that matters and keeps squares
    inside float32: 1e-30 squared would vanish, 1e30 squared overflow.
    """
    low, high = x.nan_to_num(_INF, _INF, _INF).amin(), x.nan_to_num(-_INF, -_INF, -_INF).amax()
    absmax = torch.maximum(-low, high)
    unit = (absmax.view(torch.int32) & BINARY32.infinity).view(torch.float32).clamp(_LEAST_UNIT, _MOST_UNIT)
    scaled = x.nan_to_num(0.0, 0.0, 0.0) / unit
    norm = torch.linalg.vector_norm(scaled, dtype=torch.float32)
    floats = torch.stack([low, high, scaled.sum(dtype=torch.float32), norm])
    counts = torch.stack([x.isnan().sum(dtype=torch.int32), (x == _INF).sum(dtype=torch.int32),
                          (x == -_INF).sum(dtype=torch.int32)])  # fmt: skip
    sample = spread(x).reshape(-1)
    return torch.cat([counts.view(torch.uint8), floats.view(torch.uint8), sample.contiguous().view(torch.uint8)])


def _read(part: np.ndarray, promise: _Promise) -> Summary:
    n_nan, n_posinf, n_neginf = part[:12].view(np.int32).tolist()
    low, high, total, norm = part[12:_ROW_BYTES].view(np.float32).tolist()
    size = min(promise.n, SIZE)
    counted = tally(part[_ROW_BYTES:].view(np.float32), [size])
    largest = max(-low, high) if low <= high else 0.0
    exponent = math.frexp(largest)[1] - 1
    unit = min(max(math.ldexp(1.0, exponent), _LEAST_UNIT), _MOST_UNIT)
    moments = Moments(low, high, total * unit, norm * norm * unit * unit, n_nan, n_posinf, n_neginf)
    return assembled(promise.n, size, smallest_normal_exponent(promise.dtype), moments, counted)
