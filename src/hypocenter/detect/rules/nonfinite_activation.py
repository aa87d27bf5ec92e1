"""An activation is not finite.

What it means
    The output of a module or operation held NaN or +inf. By itself this may be healthy: masks are made of
    infinities, and values that nobody uses may be anything. It matters when the loss or a gradient is not
    finite in the same step.

How it is decided
    An output is not finite while no input of the same call is. Infinities that are constants of the program are
    left out, so are sites that were not finite in earlier steps that were healthy. The first in execution order
    is reported: as an error when the loss or a gradient of the step is not finite, as a warning when there are neither
    (the program only computes outputs) and the output is the model's own, else as a note; there -inf alone, the usual
    mask, says nothing.
    Where inputs of single operations were recorded (dumps of other tools), values that are not finite are followed
    from the loss, or the first bad gradient, back to where they began; those that ended in finite results are not
    blamed. It may begin in a parameter or in what the model was given.

What to do
    If there is an error, it is the place to look at first. A replay finds the operation inside the module.

When it is wrong
    In the first recorded step nothing is known of earlier ones, and a mask may be named.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from hypocenter.detect.engine import rule
from hypocenter.detect.flow import Call, Origin, bad_results, calls_of, has_flow, origin_in_update, origin_of
from hypocenter.detect.window import Window, healthy_key
from hypocenter.domains import DOMAINS
from hypocenter.formats import FORMATS
from hypocenter.nouns import Finding, Reading

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


@rule("HC104", "nonfinite", severity="error", reads=("nonfinite", "imported"), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire on the first output that is new among the non-finite ones and whose inputs are finite."""
    is_healthy = window.loss_finite and window.grads_finite
    is_followed = has_flow(window.readings)
    is_healthy &= not (is_followed and bad_results(window.readings))
    if is_followed and (origin := _origin(window, is_healthy=is_healthy)) is not None:
        found = _followed(origin, window)
        if is_healthy and origin.reading.phase == "backward":  # no gradient of a parameter was recorded
            found = replace(found, severity="warning")
        yield found
        return
    rows = sorted((r for r in window.of("forward", "loss") if _counts(r, window)), key=lambda r: r.order)
    tainted = {_call(r) for r in rows if r.port.startswith("in[")}
    made = [r for r in rows if r.port.startswith("out") and _call(r) not in tainted]
    if is_healthy:
        made = [r for r in made if r.summary.n_nan or r.summary.n_posinf]
    if not made:
        return
    first = made[0]
    others = len({r.site for r in made}) - 1
    yield replace(
        _found(first, window, f"{first.op or first.module or 'the output'} made {_kinds(first)}"),
        severity="error" if not is_healthy else "warning" if _is_all(first, window) else "note",
        why=(f"{others} other site{'s' if others > 1 else ''} made non-finite values too",) if others else (),
    )


def _is_all(output: Reading, window: Window) -> bool:
    """Return whether the output is the model's, and nothing computed of it could tell whether it matters."""
    is_model_s = "." not in output.site and not output.lacks  # a dump may leave out what follows
    has_loss = window.record is not None and window.record.loss is not None
    return is_model_s and not has_loss and not (window.by_phase["loss"] or window.by_phase["grad"])


def _origin(window: Window, *, is_healthy: bool) -> Origin | None:
    if not is_healthy:
        return origin_of(window.readings)
    has_gradients = bool(window.by_phase["grad"])
    in_backward = None if has_gradients else origin_of([r for r in window.readings if r.phase != "loss"])
    return in_backward or origin_in_update(window.readings)


def _followed(origin: Origin, window: Window) -> Finding:
    first, call = origin.reading, origin.call
    if origin.kind == "param":
        found = _found(first, window, f"parameter {first.site} was not finite before the step")
        why = tuple(_since_when(first, window))
        return replace(found, param=first.site, cause="bad-parameter", confidence="likely", why=why)
    if origin.kind == "input":
        return _given(first, call, window)
    backward = {"backward": " in backward", "optimizer": " in the update"}.get(first.phase, "")
    found = _found(first, window, f"{first.op or first.module or first.site} made {_kinds(first)}{backward}")
    if not call.ins:
        return found
    why = [f"its {'gradients' if first.phase == 'backward' else 'inputs'} are finite, as far as they were recorded"]
    if origin.is_watched:
        has_loss = any(r.phase == "loss" and r.port == "value" for r in window.readings)
        why.append(f"the {'loss' if has_loss else 'result of the model'} descends from it")
    told = because(call, first, _forward_of(call, window))
    if told is None:
        return replace(found, confidence="likely", why=tuple(why))
    return replace(
        found, title=f"{told.title}{backward}" if told.cause == "format-overflow" else told.title, cause=told.cause,
        confidence="likely", why=(told.why, *why), limit=told.limit, actual=told.actual,
    )  # fmt: skip


def _since_when(first: Reading, window: Window) -> Iterator[str]:
    """Say how many parameters were bad with this one, and whether the last update made it so."""
    rows = list(window.by_phase["param"])
    sites, bad = {r.site for r in rows}, {r.site for r in rows if r.summary.n_nonfinite}
    if len(bad) > 1:
        yield f"{len(bad):,} of {len(sites):,} parameters were not finite then"
    before = next((r for r in reversed(window.history.records) if r.step == window.step - 1), None)
    has_gradient = any(r.site == first.site for r in window.by_phase["grad"])  # then the step before has had one too
    if before is not None and has_gradient and not before.n_bad_grads and math.isfinite(before.loss or 0.0):
        n = before.step
        yield f"the gradients of step {n} were finite: the update of step {n} made it so, or what ran after"


def _given(first: Reading, call: Call, window: Window) -> Finding:
    """Return the finding for a call that was given bad values which nothing recorded has made."""
    cast = unrecorded_cast(first, window.readings)
    if cast is not None:
        last, told = cast
        found = _found(replace(first, site=_common(last.site, first.site), op=""), window, told.title)
        return replace(
            found, port=None, cause=told.cause, confidence="possible", why=(told.why,), limit=told.limit,
            actual=told.actual,
        )  # fmt: skip
    found = _found(first, window, f"{call.key[1] or 'the model'} was given {_kinds(first)}")
    why = ("no value before it that is not finite was recorded: the batch, or what the dump leaves out",)
    return replace(found, cause="bad-input", confidence="possible", why=why)


def _common(one: str, other: str) -> str:
    """Return the path of the module around both; "" for the model itself."""
    parts = [a for a, b in zip(one.split("."), other.split("."), strict=False) if a == b]
    return ".".join(parts) if one.split(".")[: len(parts)] == other.split(".")[: len(parts)] else ""


def _forward_of(call: Call, window: Window) -> Call | None:
    phase, *rest = call.key
    if phase != "backward":
        return None
    rows = [r for r in window.by_phase["forward"] if [r.site, r.op, r.microbatch, r.call] == rest]
    return next(iter(calls_of(rows)), None)


def _found(first: Reading, window: Window, title: str) -> Finding:
    s = first.summary
    counts = (("NaN", s.n_nan), ("+inf", s.n_posinf), ("-inf", s.n_neginf))
    is_exact = "counts" not in first.lacks.split()
    return Finding(
        code="HC104",
        kind="nonfinite",
        severity="error",
        title=title,
        step=window.step,
        microbatch=first.microbatch,
        rank=window.rank,
        phase=first.phase,
        site=first.site,
        port=first.port,
        op=first.op or None,
        source=first.source,
        chips=tuple(f"{kind} ×{n:,}" if is_exact else kind for kind, n in counts if n),
        names=first.names,
    )


def _kinds(reading: Reading) -> str:
    s = reading.summary
    kinds = (("NaN", s.n_nan), ("+inf", s.n_posinf), ("-inf", s.n_neginf))
    return " and ".join(kind for kind, n in kinds if n)


def _counts(reading: Reading, window: Window) -> bool:
    if not reading.summary.n_nonfinite or reading.literal_inf or reading.port in ("value", "probe"):
        return False
    return healthy_key(reading) not in window.history.healthy_nonfinite


def _call(reading: Reading) -> tuple[str, int, int, str]:
    return reading.site, reading.microbatch, reading.call, reading.op


@dataclass(frozen=True, slots=True, kw_only=True)
class Because:
    """A cause with the numbers that show it."""

    cause: str
    title: str
    why: str
    limit: float | None = None
    actual: float | None = None


def because(call: Call, first: Reading, forward: Call | None = None) -> Because | None:
    """Return the cause of a bad output; None when the rows do not prove one.

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
    """Return the cause if an operand lies outside the domain of the function; else None."""
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
    """Return log2 of the magnitude that the result comes to for the largest inputs, and how in words; or None."""
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
    """Return the cause if forward had an input 0 where the gradient of this function is infinite; else None."""
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
    """Find the last output before an infinite input that is as large, finite and beyond float16's largest number.

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
