"""Adjudicate by doing it again: the blamed op in float64, on the same device, on the CPU; its operands as facts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from hypocenter.diagnose.evidence import OpFacts, Rerun, TensorFacts
from hypocenter.replay.repeated import repeated
from hypocenter.summary.reducers.torch import summarize
from hypocenter.summary.reducers.torch_float64 import has_float64
from hypocenter.tap.dispatch import declared, is_random
from hypocenter.tap.kept_arguments import LeftOut
from hypocenter.tap.nodes import Leaf, Node
from hypocenter.tap.numerics import numerics_entered
from hypocenter.tap.tracer import OpTracer

MAX_INDICES = 16
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """Apply to every tensor among an op's arguments (they nest in lists only)."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, fn) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, fn) for key, item in value.items()}
    return value


def execute(func: Any, args: Any, kwargs: Any, position: int) -> torch.Tensor | None:
    """Run an op on copies of its arguments; one of the tensors that it gives, if that is a floating one."""
    with torch.no_grad():
        out = func(*map_tensors(args, torch.clone), **map_tensors(kwargs, torch.clone))
    given = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)]
    found = given[position] if position < len(given) else None
    return found if found is not None and (found.is_floating_point() or found.is_complex()) else None


def in_float64(value: Any, device: torch.device | None = None) -> Any:
    """Floating tensors and requested floating dtypes widened to float64 (complex to complex128).

    Args:
        device: where tensors are brought, and what the op is told; None: they stay.
    """

    def widen(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor if device is None else tensor.to(device)
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.double() if tensor.is_floating_point() else tensor

    def plain(item: Any) -> Any:
        if isinstance(item, torch.dtype):
            return torch.float64 if item in FLOATS else item
        return device if isinstance(item, torch.device) and device is not None else item

    widened = map_tensors(value, widen)
    if isinstance(widened, dict):
        return {k: plain(v) for k, v in widened.items()}
    return tuple(plain(v) for v in widened)


def _reference_device(node: Node) -> torch.device | None:
    """The CPU for an op on a device without float64, else None: where it ran."""
    found: list[torch.Tensor] = []
    map_tensors((*node.args, *node.kwargs.values()), found.append)
    return None if all(has_float64(t.device.type) for t in (*found, *node.outputs)) else torch.device("cpu")


def bad_output(node: Node) -> torch.Tensor | None:
    """The first output that is not finite."""
    at = _bad_at(node)
    return None if at is None else node.outputs[at]


def _bad_at(node: Node) -> int | None:
    for at, tensor in enumerate(node.outputs):
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            return at
    return None


def _why_not(node: Node) -> str:
    """Why an op is not executed again, or ''."""
    return node.why_not_again or ("its inputs were not kept" if node.func is None or node.args is None else "")


def bad_mask(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    """Where the output is not finite, leaving out constants of the program (a mask's -inf) when NaN is the news."""
    nan = torch.isnan(tensor)
    return nan if bool(nan.any()) else ~torch.isfinite(tensor)


def rerun_float64(node: Node) -> Rerun:
    """The op in float64: finite means that the format was too small, not that the mathematics is singular."""
    if why := _why_not(node):
        return Rerun(why_not=why)
    original, at = bad_output(node), _bad_at(node)
    if original is None or at is None:
        return Rerun(why_not="it has no comparable output")
    try:
        device = _reference_device(node)
        given = in_float64(node.args, device), in_float64(node.kwargs, device)
        result = execute(node.func, *given, node.positions[at])
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        return Rerun(why_not=f"it cannot run in float64: {str(error).splitlines()[0][:120]}")
    if result is None or result.shape != original.shape:
        return Rerun(why_not="it has no comparable output")
    there = result[bad_mask(original, node).to(result.device)]
    finite = there[torch.isfinite(there)].abs()
    n_nonfinite = int(there.numel() - finite.numel())
    return Rerun(
        ran=True,
        finite=n_nonfinite == 0,
        absmax=float(finite.max()) if finite.numel() else 0.0,
        n_nonfinite=n_nonfinite,
    )


def rerun_same(node: Node, device: str | None = None) -> Rerun:
    """The op again on the same device, or on `device`: other bits mean hardware or a race, other values the kernel.

    Where the bits are not those of the run it is executed several times more: a kernel may be of two minds.
    """
    if why := _why_not(node):
        return Rerun(why_not=why)
    if is_random(node.func):
        return Rerun(why_not="it draws random numbers")
    original, at = bad_output(node), _bad_at(node)
    if original is None or at is None:
        return Rerun(why_not="it has no comparable output")
    args, kwargs = node.args, node.kwargs
    if device is not None:
        args, kwargs = map_tensors(args, lambda t: t.to(device)), map_tensors(kwargs, lambda t: t.to(device))
        original = original.to(device)

    def again() -> torch.Tensor | None:
        with numerics_entered(node.numerics):
            return execute(node.func, args, kwargs, node.positions[at])

    try:
        result = again()
        if result is None or result.shape != original.shape:
            return Rerun(why_not="it has no comparable output")
        found = _compared(result, original, node)
        is_enough = device is not None or found.equal_bits
        return found if is_enough else repeated(found, again, _equal_bits, result, original)
    except (RuntimeError, NotImplementedError, TypeError) as error:
        return Rerun(why_not=str(error).splitlines()[0][:120])


def _compared(result: torch.Tensor, original: torch.Tensor, node: Node) -> Rerun:
    there = result[bad_mask(original, node)]
    finite = torch.isfinite(there)
    return Rerun(
        ran=True,
        finite=bool(finite.all()),
        absmax=float(there[finite].abs().max()) if bool(finite.any()) else 0.0,
        n_nonfinite=int((~finite).sum()),
        equal_bits=_equal_bits(result, original),
    )


def _equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype:
        return False
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    return bool(same.all())


def limit_of(dtype: torch.dtype) -> float | None:
    """The largest value of a floating format; None for others."""
    return float(torch.finfo(dtype).max) if dtype.is_floating_point else None


def chips(tensor: torch.Tensor) -> tuple[str, ...]:
    """How many of each kind of non-finite value: "+inf ×12"."""
    counts = (
        ("NaN", int(torch.isnan(tensor).sum())),
        ("+inf", int(torch.isposinf(tensor).sum()) if not tensor.is_complex() else 0),
        ("-inf", int(torch.isneginf(tensor).sum()) if not tensor.is_complex() else 0),
    )
    return tuple(f"{kind} ×{count:,}" for kind, count in counts if count)


def tensor_facts(tensor: torch.Tensor, name: str, origin: str = "", literal: bool = False) -> TensorFacts:
    """A tensor as plain facts."""
    return TensorFacts(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        summary=summarize(tensor),
        origin=origin,
        literal_inf=literal,
    )


def op_facts(tracer: OpTracer, node: Node, *, detailed: bool = True) -> OpFacts:
    """An op as plain facts; detailed ones need captured arguments."""
    inputs: list[TensorFacts] = []
    scalars: dict[str, Any] = {}
    if detailed and node.args is not None:
        schema = [argument.name for argument in declared(node.func)] or [f"in[{i}]" for i in range(len(node.args))]
        position = 0
        for name, value in (*zip(schema, node.args, strict=False), *node.kwargs.items()):
            if value is None:
                continue
            if isinstance(value, LeftOut):
                position += 1
            elif isinstance(value, torch.Tensor) or (
                isinstance(value, (list, tuple)) and any(isinstance(v, (torch.Tensor, LeftOut)) for v in value)
            ):
                for tensor in [value] if isinstance(value, torch.Tensor) else value:
                    edge = node.traced.inputs[position] if position < len(node.traced.inputs) else None
                    origin = describe_producer(tracer, edge.producer) if edge is not None else ""
                    literal = edge is not None and bool(edge.bits) and not edge.real
                    if isinstance(tensor, torch.Tensor):  # one that is left out among others has no facts
                        inputs.append(tensor_facts(tensor, name, origin, literal))
                    position += 1
            elif isinstance(value, (bool, int, str)) or (isinstance(value, float) and abs(value) < float("inf")):
                scalars[name] = value
            elif isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value):
                scalars[name] = list(value)
            else:
                scalars[name] = str(value).removeprefix("torch.")
    place = node.place
    is_of_forward = place.phase == "backward" and bool(place.forward_op) and not node.traced.is_collective
    return OpFacts(
        index=node.traced.index,
        op=place.forward_op if is_of_forward else node.traced.op,
        phase=place.phase,
        site=place.site,
        module=place.module,
        port="grad_in[0]" if node.is_gradient else "out[0]",
        source=place.source(),
        node=place.node,
        inputs=tuple(inputs),
        outputs=tuple(tensor_facts(t, f"out[{i}]") for i, t in enumerate(node.outputs)) if detailed else (),
        scalars={**scalars, **({"backward_op": node.traced.op} if place.phase == "backward" else {})},
    )


def describe_producer(tracer: OpTracer, producer: int) -> str:
    """Who made a tensor, in words."""
    if producer < 0:
        leaf: Leaf = tracer.leaves[-1 - producer]
        return f"{leaf.kind} {leaf.name}".strip()
    node = tracer.nodes[producer]
    return f"{node.traced.op} in {node.place.site or 'the model'}"
