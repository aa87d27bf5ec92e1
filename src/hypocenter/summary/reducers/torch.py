"""torch tensor -> Summary: at once and exact (`summarize`), or on the hot path without waiting (`TorchReducer`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from hypocenter.capturing import is_capturing
from hypocenter.nouns import Summary, replace
from hypocenter.summary.reducers import torch_triton
from hypocenter.summary.reducers.sampling import SMALL, Moments
from hypocenter.summary.reducers.torch_deferred import Deferred
from hypocenter.summary.reducers.torch_exact import CHUNK, exact
from hypocenter.summary.reducers.torch_samples import Samples
from hypocenter.summary.reducers.torch_sketch import Placement, sketch_of
from hypocenter.summary.reducers.torch_values import in_a_row, local_values, n_elements

Histogram = Literal["sample", "full"]

_FAST = frozenset((torch.float32, torch.bfloat16, torch.float16))
_WHOLE = (Tensor, torch.nn.Parameter)
_INF = math.inf
_SHORT = 1 << 15  # elements: of more two operators are faster than aminmax, which costs one call less
_TRUSTED_RMS = 1e-15  # below it squares come near the smallest float32 (1.2e-38) and lose bits: sum them in float64


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
        if (values := local_values(t)) is None or is_capturing(values.device.type):
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

    Where Triton serves the device (torch_triton) a tensor is read once, and all but the sample is exact.

    `histogram="full"` waits for an accelerator in `add` without Triton; `sketch=True` multiplies matrices there: not
    for every step. `warn` is told when Triton fails, which then is not used any more.
    """

    def __init__(
        self,
        histogram: Histogram = "sample",
        sketch: bool = False,
        *,
        defer_cpu: bool = False,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._full = histogram == "full"
        self._sketch = sketch
        self._warn = warn
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
        if (values := local_values(t)) is None or is_capturing(values.device.type):
            return Summary(n=n_elements(t))
        if values.is_cpu and not self._defer_cpu:
            return exact(values) if self._full or values.dtype not in _FAST else self._reduce(values, ticket)
        if not values.numel():
            return Summary()
        deferred = self._deferred.setdefault(values.device, Deferred())
        if not self._full:
            deferred.add(ticket, in_a_row(values))
        elif not deferred.add_fused(ticket, in_a_row(values), is_full=True):
            return exact(values)
        return None

    def drain(self) -> list[Summary]:
        """Return the Summary of every ticket in order, and start anew."""
        done, deferred, sketches = self._done, self._deferred, self._sketches
        self._reset()
        if self._warn is not None:
            torch_triton.tell(self._warn)
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

    A long tensor is taken in pieces: the second sweep then finds the piece in cache, and float32 sums stay short. Short
    formats are converted piece by piece: each sweep would convert them again. What that leaves is shown by
    bench/summary.py: a sweep for each question, and none of torch's operators answers two of them faster than two do
    (those that were tried: bench/MEASURED.md).
    """
    if n <= 2 * CHUNK:
        return _chunk(dense if dense.dtype is torch.float32 else dense.to(torch.float32), n)
    wide = None if dense.dtype is torch.float32 else torch.empty(CHUNK, dtype=torch.float32, device="cpu")
    chunks = dense.view(-1).split(CHUNK)
    return _added([
        _chunk(chunk if wide is None else wide[: chunk.numel()].copy_(chunk), chunk.numel()) for chunk in chunks
    ])  # fmt: skip


def _chunk(x: Tensor, n: int) -> Moments:
    """Return the moments of float32 values, in a few sweeps. NaN and infinities show in the extremes."""
    lows, highs = torch.aminmax(x) if n <= _SHORT else (torch.amin(x), torch.amax(x))
    low, high = lows.item(), highs.item()
    if not (low > -_INF and high < _INF):  # also when they are NaN
        return _finite_part(x)
    total = torch.sum(x).item()
    norm = torch.linalg.vector_norm(x).item()
    moments = Moments(low, high, total, norm * norm)
    if not n * _TRUSTED_RMS**2 <= moments.squares < _INF and (low or high):
        return moments._replace(**_wide_sums(x))
    return moments


def _finite_part(x: Tensor) -> Moments:
    n_nan, n_posinf, n_neginf = (int(is_one.sum().item()) for is_one in (x.isnan(), x == _INF, x == -_INF))
    low, high = x.nan_to_num(_INF, _INF, _INF).amin().item(), x.nan_to_num(-_INF, -_INF, -_INF).amax().item()
    sums = _wide_sums(x.nan_to_num(0.0, 0.0, 0.0))
    return Moments(low, high, sums["total"], sums["squares"], n_nan, n_posinf, n_neginf)


def _wide_sums(x: Tensor) -> dict[str, float]:
    """Return sums in float64, where float32 ones overflow or lose the squares they add up."""
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
