"""torch tensor -> Summary: at once and exact (`summarize`), or on the hot path without waiting (`TorchReducer`)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from hypocenter.nouns import Summary, replace
from hypocenter.summary.reducers.torch_deferred import Deferred
from hypocenter.summary.reducers.torch_exact import CHUNK, exact
from hypocenter.summary.reducers.torch_samples import SMALL, Moments, Samples
from hypocenter.summary.reducers.torch_sketch import Placement, sketch_of
from hypocenter.summary.reducers.torch_values import in_a_row, is_capturing, local_values, n_elements

Histogram = Literal["sample", "full"]

_FAST = frozenset((torch.float32, torch.bfloat16, torch.float16))
_WHOLE = (Tensor, torch.nn.Parameter)
_TRUSTED_RMS = 1e-15  # below it squares near the smallest float32 (1.2e-38) lose bits or vanish: sum them in float64


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
    `histogram="full"`. On the CPU everything is exact for a tensor of at most SMALL elements, one with a NaN or an
    infinity, integers, bool and float64.

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

    def add(self, t: Tensor, place: Placement | None = None) -> int:
        """Take in a tensor as it is now and return its ticket: the index of its Summary in `drain()`."""
        ticket = len(self._done)
        self._done.append(None)
        try:
            self._done[ticket] = self._reduce(t, ticket)
            if self._sketch and local_values(t) is not None:
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
        moments = _moments(dense) if n <= 2 * CHUNK else _moments_in_chunks(dense.view(-1))
        if not (moments.low > -_INF and moments.high < _INF):  # also when they are NaN
            return exact(dense)
        if not n * _TRUSTED_RMS**2 <= moments.squares < _INF and (moments.low or moments.high):
            moments = _wide(moments, dense)
        return self._samples.add_spread(ticket, dense, n, moments)

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


_INF = float("inf")
_NAN = float("nan")


def _moments(dense: Tensor) -> Moments:
    """Extremes and sums in one sweep each; NaN and infinities show in the extremes.

    amin and amax are together faster than aminmax in float32, and slower in float16 and bfloat16.
    """
    if dense.dtype is torch.float32:
        low, high = torch.amin(dense), torch.amax(dense)
    else:
        low, high = torch.aminmax(dense)
    total = torch.sum(dense, dtype=torch.float32)
    norm = torch.linalg.vector_norm(dense, dtype=torch.float32).item()
    return Moments(low.item(), high.item(), total.item(), norm * norm)


def _moments_in_chunks(row: Tensor) -> Moments:
    """The same, a piece at a time: the second sweep then finds the piece in cache, and float32 sums stay short."""
    low, high, total, squares = _INF, -_INF, 0.0, 0.0
    for chunk in row.split(CHUNK):
        part = _moments(chunk)
        if not (part.low > -_INF and part.high < _INF):
            return Moments(_NAN, _NAN, _NAN, _NAN)
        low, high = min(low, part.low), max(high, part.high)
        total, squares = total + part.total, squares + part.squares
    return Moments(low, high, total, squares)


def _wide(moments: Moments, dense: Tensor) -> Moments:
    """The same extremes with sums in float64: the float32 ones overflowed, or lost the squares they add up."""
    wide = [chunk.to(torch.float64) for chunk in dense.view(-1).split(CHUNK)]
    total, squares = sum(chunk.sum().item() for chunk in wide), sum((chunk * chunk).sum().item() for chunk in wide)
    return Moments(moments.low, moments.high, total, squares)


def _fetched(sketches: list[tuple[int, Tensor]]) -> list[tuple[int, tuple[float, ...]]]:
    by_device: dict[torch.device, list[tuple[int, Tensor]]] = {}
    for ticket, values in sketches:
        by_device.setdefault(values.device, []).append((ticket, values))
    return [
        (ticket, tuple(row))
        for held in by_device.values()
        for (ticket, _), row in zip(held, torch.stack([values for _, values in held]).tolist(), strict=True)
    ]
