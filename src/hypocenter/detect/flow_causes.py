"""What the recorded inputs of a call prove about why its output is not finite. Only what is certain of the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from hypocenter.detect.flow import Call
from hypocenter.domains import DOMAINS
from hypocenter.formats import FORMATS
from hypocenter.nouns import Reading

_SQUARES = ("pow", "__pow__", "pow_", "square", "square_")
_PRODUCTS = ("mul", "__mul__", "mul_", "__rmul__", "__imul__", "multiply")
_CONTRACTIONS = ("linear", "matmul", "__matmul__", "bmm", "mm", "addmm", "baddbmm", "einsum", "dense")
_CASTS = ("cast", "to", "half", "bfloat16", "type")
_EXPONENTIALS = ("exp", "exp_", "expm1")
_LOGARITHMS = ("log", "log_", "log2", "log10")
_QUOTIENTS = (
    "div", "div_", "__truediv__", "true_divide", "__itruediv__", "reciprocal", "reciprocal_", "rsqrt", "rsqrt_",
    "addcdiv", "addcdiv_",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """A cause with the numbers that show it."""

    cause: str
    title: str
    why: str
    limit: float | None = None
    actual: float | None = None


def because(call: Call, first: Reading, forward: Call | None = None) -> Because | None:
    """The cause; None when the rows do not prove one.

    Args:
        call: whose inputs are finite.
        first: its first bad output.
        forward: of a backward call, the forward call that it belongs to.
    """
    name = call.key[2].rpartition(".")[2].lower()
    if call.key[0] == "backward":
        return _backward(name, forward)
    form = FORMATS.get(first.dtype)
    sizes = [r.summary.absmax for r in call.ins if r.summary.n and not r.dtype.startswith(("int", "bool", "uint"))]
    if not sizes:
        return None
    if name in _LOGARITHMS and call.ins[0].summary.min == 0.0 and not first.summary.n_nan:
        return Because(cause="log-of-zero", title="the logarithm of 0", why="the smallest input is exactly 0")
    if name in _QUOTIENTS and 0.0 in (call.ins[-1].summary.min, call.ins[-1].summary.max):
        return Because(cause="division-by-zero", title="a division by 0", why="the divisor is exactly 0 somewhere")
    outside = _outside(name, call) if first.summary.n_nan else None
    if outside is not None:
        return outside
    if form is None or first.summary.n_nan:
        return None
    reached = _reached(name, sizes, call)
    if reached is None or not reached[0] > math.log2(form.max):
        return None
    how, log2 = reached[1], reached[0]
    size = 2.0**log2 if log2 < 1023 else None
    return Because(
        cause="format-overflow", title=f"{call.key[2] or call.key[1]} overflowed {first.dtype}", limit=form.max,
        actual=size, why=f"{how}, and the largest {first.dtype} is {form.max:.3g}",
    )  # fmt: skip


def _outside(name: str, call: Call) -> Because | None:
    """An operand outside the domain of the function."""
    name = name.rstrip("_")
    domain = DOMAINS.get(name)
    s = call.ins[domain.of].summary if domain is not None and domain.of < len(call.ins) else None
    if domain is None or s is None or s.min is None or s.max is None or domain.has(s.min, s.max):
        return None
    worst = s.min if s.min < domain.low else s.max
    return Because(
        cause="out-of-domain", title=f"{name} of {domain.outside}", limit=domain.end_near(worst), actual=worst,
        why=f"the input goes {'down' if worst == s.min else 'up'} to {worst:.6g}",
    )  # fmt: skip


def _reached(name: str, sizes: list[float], call: Call) -> tuple[float, str] | None:
    """log2 of the magnitude that the result comes to for the largest inputs, in words."""
    largest = max(sizes)
    if not largest:
        return None
    if name in _SQUARES and len(call.ins) == 1:
        return 2 * math.log2(largest), f"the input reaches {largest:.3g}, its square 2^{2 * math.log2(largest):.0f}"
    if name in _CASTS and len(sizes) == 1:
        return math.log2(largest), f"the input reaches {largest:.3g}"
    if name in _EXPONENTIALS and (call.ins[0].summary.max or 0.0) > 0:
        top = call.ins[0].summary.max or 0.0
        return top * math.log2(math.e), f"the input reaches {top:.3g}, its exponential 2^{top * math.log2(math.e):.0f}"
    if name in (*_PRODUCTS, *_CONTRACTIONS) and len(sizes) > 1 and min(sizes[:2]) > 0:
        log2 = math.log2(sizes[0]) + math.log2(sizes[1])
        return log2, f"the factors reach {sizes[0]:.3g} and {sizes[1]:.3g}, their product 2^{log2:.0f}"
    return None


def _backward(name: str, forward: Call | None) -> Because | None:
    """Gradients that are infinite at 0."""
    if forward is None or not forward.ins or forward.ins[0].summary.min != 0.0:
        return None
    if name in ("sqrt", "sqrt_", "rsqrt"):
        return Because(
            cause="sqrt-gradient-at-zero", title="the gradient of a root at 0",
            why="the smallest input of forward is exactly 0, where the slope of the root is infinite",
        )  # fmt: skip
    if name in _LOGARITHMS:
        return Because(
            cause="log-of-zero", title="the gradient of a logarithm at 0",
            why="the smallest input of forward is exactly 0",
        )  # fmt: skip
    return None


def unrecorded_cast(first: Reading, rows: Iterable[Reading]) -> tuple[Reading, Because] | None:
    """The last output before an infinite input that is as large as it, finite and beyond float16's largest number.

    Dumps leave out casts, views and arithmetic on them: one of these made the infinity.
    """
    s = first.summary
    if s.n_nan or not (s.n_posinf or s.n_neginf):
        return None
    limit = FORMATS["float16"].max
    before = [
        r for r in rows
        if r.phase == "forward" and r.port.startswith("out") and r.order < first.order and r.summary.n == s.n
        and not r.summary.n_nonfinite and r.summary.absmax > limit and r.microbatch == first.microbatch
    ]  # fmt: skip
    if not before:
        return None
    last = max(before, key=lambda r: r.order)
    size, name = last.summary.absmax, last.op or last.site
    why = f"{name} gave {size:.3g}, which is finite; nothing was recorded between it and {first.site or 'the model'}"
    told = Because(
        cause="format-overflow", title="a cast that was not recorded overflowed", limit=limit, actual=size,
        why=f"{why}: a cast to float16 (largest {limit:.0f}) would do this",
    )  # fmt: skip
    return last, told
