"""Every op of a replayed step against float64 on the CPU, as it runs: which of them no rounding can excuse."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hypocenter.replay.adjudicate import FLOATS, map_tensors
from hypocenter.replay.effort import Allowance, effort
from hypocenter.replay.triage import attending, elements, in_part, products, sums
from hypocenter.replay.triage.expected import UNITS, Call, Expected, TooMuch
from hypocenter.replay.triage.log import line_of
from hypocenter.replay.triage.wire_format import OpLine
from hypocenter.tap.dispatch import Mode, is_mutable, is_view
from hypocenter.tap.op_context import OpContext, OpPlace

MAX_WRONG = 8  # ops that are kept; the first is the one to blame
LARGEST = 1 << 28  # bytes of one tensor in float64 that may be made
SECONDS = 20.0  # of checking in one replay; what comes later is not judged
Expect = Callable[[Call], list[Expected | None]]

_MOVED = """_to_copy copy clone cat stack index_select gather index where masked_fill repeat slice_backward flip roll
    select_backward constant_pad_nd tril triu amax amin maximum minimum clamp clamp_min clamp_max relu neg abs
    threshold_backward max_pool2d_with_indices embedding fill zeros_like ones_like hardtanh scatter contiguous"""
_MULTIPLIED = """mul div reciprocal sqrt rsqrt exp pow square leaky_relu leaky_relu_backward nll_loss_backward
    exp2 true_divide"""
_BOUNDED = "sigmoid tanh erf sin cos log log1p log2 log10"
_GATED = "gelu silu softplus mish hardswish"
_GATED_BACKWARD = "gelu_backward silu_backward tanh_backward sigmoid_backward"

_FAMILIES: dict[Expect, str] = {
    products.matmul: "mm bmm mv dot matmul",
    products.addmm: "addmm baddbmm addmv",
    products.linear: "linear",
    products.convolution: "convolution",
    products.convolution_backward: "convolution_backward",
    sums.total: "sum mean nansum cumsum avg_pool2d _adaptive_avg_pool2d embedding_dense_backward",
    sums.norm: "linalg_vector_norm",
    sums.losses: "mse_loss l1_loss smooth_l1_loss huber_loss",
    sums.loss_backward: "mse_loss_backward",
    sums.nll: "nll_loss_forward nll_loss2d_forward",
    sums.softmax: "_softmax _safe_softmax",
    sums.log_softmax: "_log_softmax",
    sums.softmax_backward: "_softmax_backward_data",
    sums.log_softmax_backward: "_log_softmax_backward_data",
    sums.layer_norm: "native_layer_norm",
    sums.layer_norm_backward: "native_layer_norm_backward",
    attending.attention: "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention",
    attending.attention_backward: """_scaled_dot_product_flash_attention_for_cpu_backward
        _scaled_dot_product_flash_attention_backward""",
    elements.moved: _MOVED,
    elements.multiplied: _MULTIPLIED,
    elements.bounded: _BOUNDED,
    elements.exponential_unit: "elu",
    elements.gated: _GATED,
    elements.gated_backward: _GATED_BACKWARD,
    elements.added: "add sub rsub addcmul addcdiv lerp",
}

BY_ROWS: frozenset[Expect] = frozenset({attending.attention, attending.attention_backward})
"""They bring to float64 what they need, row by row."""
IN_PART: dict[Expect, Expect] = {
    products.matmul: in_part.product,
    products.addmm: in_part.product,
    products.convolution: in_part.convolution,
    products.convolution_backward: in_part.convolution_backward,
}
"""What is judged, where all of it would be too much."""
FAMILIES: dict[str, Expect] = {name: expect for expect, names in _FAMILIES.items() for name in names.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongOp:
    """An op whose result no order of summation and no rounding explains."""

    order: int  # position among all ops of the replay
    op: str  # aten.mm.default
    place: OpPlace
    out: int  # which result
    index: tuple[int, ...]  # first wrong element of it (of its row sums, for a large product)
    got: float
    expected: float
    bound: float
    n_wrong: int
    n: int


@dataclass(slots=True, kw_only=True)
class OpReport:
    """What the check of a replay found."""

    wrong: list[WrongOp] = field(default_factory=list)
    n_checked: int = 0
    n_unknown: int = 0  # operators that nothing is known of
    n_late: int = 0  # not judged: the time was over, or it would take too much of it, or too much memory
    lines: list[OpLine] = field(default_factory=list)  # every op, when a log was asked for


class OpCheck(Mode):
    """Judge each op of what runs inside against float64.

    Args:
        context: knows modules and lines.
        log: note the bits that go into and come out of each op, to be compared with a neighbour's.
        seconds: after so much checking no further op is judged.
    """

    def __init__(self, context: OpContext, *, log: bool = False, seconds: float = SECONDS) -> None:
        super().__init__()
        self.context = context
        self.report = OpReport()
        self.places: dict[int, OpPlace] = {}  # of logged ops, by their number in the log
        self._left_s, self._is_logging = seconds, log
        self._order = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: compiled regions are run eagerly in a replay, and nothing of ours may reach their tracing."""
        return True

    def restart(self) -> None:
        """Forget what was found: the replay starts over."""
        self.report, self._order = OpReport(), 0
        self.places.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "aten" or is_view(func):
            return func(*args, **kwargs)
        self._order += 1
        if self._left_s <= 0.0:
            self.report.n_late += 1
            return func(*args, **kwargs)
        mutates = is_mutable(func)
        before = map_tensors((args, kwargs), torch.clone) if mutates else (args, kwargs)
        out = func(*args, **kwargs)
        started = time.perf_counter()
        if self._is_logging and (line := line_of(func, before[0], before[1], out)) is not None:
            self.places[len(self.report.lines)] = self.context.place(str(func))
            self.report.lines.append(line)
        self._check(func, before[0], before[1], out)
        self._left_s -= time.perf_counter() - started
        return out

    def _check(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        outputs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        if not any(_is_floating(t) for t in outputs):
            return
        try:
            found = judge(func, args, kwargs, outputs, self._left_s)
        except TooMuch:
            self.report.n_late += 1
            return
        if found is None:
            self.report.n_unknown += 1
            return
        self.report.n_checked += 1
        for wrong in found:
            if len(self.report.wrong) < MAX_WRONG:
                place = self.context.place(str(func))
                self.report.wrong.append(_wrong_op(wrong, self._order, str(func), place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A result that is off."""

    out: int
    index: tuple[int, ...]
    got: float
    expected: float
    bound: float
    n_wrong: int
    n: int


def judge(func: Any, args: Any, kwargs: Any, outputs: Sequence[Any], seconds: float = SECONDS) -> list[Judged] | None:
    """Compare results of one op with float64 on the CPU.

    Returns:
        The results that are off; None when nothing is known of this op or these arguments.

    Raises:
        TooMuch: it would take more than `seconds`, or too much memory.
    """
    expect = FAMILIES.get(func.__name__.partition(".")[0].rstrip("_")) or FAMILIES.get(func.__name__.partition(".")[0])
    floating = [t for t in _flat((args, kwargs)) if t.is_floating_point()]
    dtypes = tuple(t.dtype for t in floating)
    if expect is None or any(t.layout != torch.strided or t.dtype not in UNITS for t in floating):
        return None
    allowed = Allowance(seconds=seconds, device=torch.device("cpu"), dtype=torch.float64)
    is_by_rows = expect in BY_ROWS
    if not is_by_rows and _is_too_much(expect, func, args, kwargs, outputs, allowed):
        if expect not in IN_PART:
            raise TooMuch
        expect, is_by_rows = IN_PART[expect], True
    call = Call(
        func=func,
        args=tuple(args) if is_by_rows else _wide(args),
        kwargs=kwargs if is_by_rows else _wide(kwargs),
        outputs=tuple(outputs),
        dtypes=dtypes,
        out_dtypes=tuple(t.dtype if _is_floating(t) else None for t in outputs),
        device=next((t.device.type for t in floating if t.device.type != "cpu"), "cpu"),
        allowed=allowed,
    )
    try:
        expected = expect(call)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError, AttributeError):
        return None  # not in float64, or arguments in a way that the bound does not know
    return [
        off
        for index, (output, wanted) in enumerate(zip(outputs, expected, strict=False))
        if wanted is not None and _is_floating(output) and (off := _compare(index, output, wanted)) is not None
    ]


def _is_too_much(expect: Any, func: Any, args: Any, kwargs: Any, outputs: Sequence[Any], allowed: Allowance) -> bool:
    """Return whether an op is too large to be judged as a whole. Of large products only sums of rows are compared."""
    tensors = [t for t in (*_flat((args, kwargs)), *outputs) if isinstance(t, torch.Tensor)]
    if any(t.numel() * 8 > LARGEST for t in tensors if t.is_floating_point()):
        return True
    cost = effort(func, args, kwargs, outputs)
    is_product = expect in (products.matmul, products.addmm, products.linear)
    cost = replace(cost, flops=0.0 if is_product else 2 * cost.flops, bytes=3 * cost.bytes)  # values and magnitudes
    return bool(allowed.refuses(cost))


def _compare(index: int, output: torch.Tensor, wanted: Expected) -> Judged | None:
    got = wanted.project(output.detach().to("cpu", torch.float64))
    if got.shape != wanted.value.shape:
        return None
    wrong = ~((got - wanted.value).abs() <= wanted.bound)
    wrong &= torch.isfinite(wanted.value) & (wanted.bound < torch.finfo(output.dtype).max)  # else it may be anything
    inner = torch.promote_types(output.dtype, torch.float32)
    for held, dtype in ((wanted.mass, output.dtype), (wanted.inner, inner)):
        wrong &= held.expand_as(got) * 4.0 < torch.finfo(dtype).max
    n_wrong = int(wrong.sum())
    if not n_wrong:
        return None
    first = tuple(int(i) for i in wrong.nonzero()[0].tolist())
    place = first
    if wanted.rows is not None:
        at = wanted.rows[first[0]] * got.shape[1] + first[1]
        place = tuple(int(i) for i in torch.unravel_index(at, output.shape))
    return Judged(
        out=index, index=place, got=float(got[first]), expected=float(wanted.value[first]),
        bound=float(wanted.bound[first]), n_wrong=n_wrong, n=got.numel(),
    )  # fmt: skip


def _wrong_op(judged: Judged, order: int, op: str, place: OpPlace) -> WrongOp:
    return WrongOp(
        order=order, op=op, place=place, out=judged.out, index=judged.index, got=judged.got,
        expected=judged.expected, bound=judged.bound, n_wrong=judged.n_wrong, n=judged.n,
    )  # fmt: skip


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in UNITS and value.layout == torch.strided


def _flat(value: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_tensors(value, found.append)
    return found


def _wide(value: Any) -> Any:
    """Bring floating tensors to float64 on the CPU, all others to the CPU; formats asked for become float64."""

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach().to("cpu")
        return tensor.double() if tensor.is_floating_point() else tensor

    wide = map_tensors(value, widen)
    cpu = torch.device("cpu")

    def plain(item: Any) -> Any:
        if isinstance(item, torch.dtype):
            return torch.float64 if item in FLOATS else item
        return cpu if isinstance(item, torch.device) else item

    return {k: plain(v) for k, v in wide.items()} if isinstance(wide, dict) else tuple(plain(v) for v in wide)
