"""Adjudicate by doing it again: the blamed op in float64, on the same device, on the CPU; its operands as facts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from hypocenter.diagnose.evidence import OpFacts, Rerun, TensorFacts
from hypocenter.replay.deadline import Deadline
from hypocenter.replay.effort import Allowance, effort
from hypocenter.replay.repeated import repeated
from hypocenter.replay.rows import as_rows, by_rows, chosen
from hypocenter.summary.reducers.torch import summarize
from hypocenter.summary.reducers.torch_float64 import has_float64
from hypocenter.tap.dispatch import declared, is_random
from hypocenter.tap.kept_arguments import LeftOut
from hypocenter.tap.nodes import Leaf, Node
from hypocenter.tap.numerics import numerics_entered
from hypocenter.tap.tracer import OpTracer

MAX_INDICES = 16
RERUN_S = 15.0  # that one op in float64 or on the CPU may take, and at most a quarter of what is left for the step
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def map_tensors(value: Any, fn: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to every tensor among an op's arguments (they nest in lists and dictionaries only)."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, (list, tuple)):
        return type(value)(map_tensors(item, fn) for item in value)
    if isinstance(value, dict):
        return {key: map_tensors(item, fn) for key, item in value.items()}
    return value


def execute(func: Any, args: Any, kwargs: Any, position: int) -> torch.Tensor | None:
    """Run an op, on copies if it may write to its arguments; return output `position`, None if that is no float."""
    schema = getattr(func, "_schema", None)
    if schema is None or schema.is_mutable:
        args, kwargs = map_tensors(args, torch.clone), map_tensors(kwargs, torch.clone)
    with torch.no_grad():
        out = func(*args, **kwargs)
    given = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)]
    found = given[position] if position < len(given) else None
    return found if found is not None and (found.is_floating_point() or found.is_complex()) else None


def in_float64(value: Any, device: torch.device | None = None) -> Any:
    """Widen floating tensors and requested floating dtypes to float64 (complex to complex128).

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


def _where(node: Node) -> torch.device:
    """Return the device on which an op is done in float64: where it ran, or the CPU if float64 is not known there."""
    found: list[torch.Tensor] = []
    map_tensors((*node.args, *node.kwargs.values()), found.append)
    devices = [t.device for t in (*node.outputs, *found)]
    is_fit = all(has_float64(device.type) for device in devices)
    return next((d for d in devices if d.type != "cpu"), devices[0]) if is_fit and devices else torch.device("cpu")


def bad_output(node: Node) -> torch.Tensor | None:
    """Return the first output that is not finite; None if all are."""
    at = _bad_at(node)
    return None if at is None else node.outputs[at]


def _bad_at(node: Node) -> int | None:
    for at, tensor in enumerate(node.outputs):
        if (tensor.is_floating_point() or tensor.is_complex()) and not bool(torch.isfinite(tensor).all()):
            return at
    return None


def _why_not(node: Node) -> str:
    """Return why an op is not executed again; "" if it can be."""
    return node.why_not_again or ("its inputs were not kept" if node.func is None or node.args is None else "")


def bad_mask(tensor: torch.Tensor, node: Node) -> torch.Tensor:
    """Return where the output is not finite, leaving out constants of the program (a mask's -inf) when there is NaN."""
    nan = torch.isnan(tensor)
    return nan if bool(nan.any()) else ~torch.isfinite(tensor)


def rerun_float64(node: Node, deadline: Deadline) -> Rerun:
    """Do the op again in float64: if that is finite the format was too small, and the mathematics is not singular."""
    if why := _why_not(node):
        return Rerun(why_not=why)
    device = _where(node)
    moved = device if device.type == "cpu" else None

    def whole(position: int) -> torch.Tensor | None:
        return execute(node.func, in_float64(node.args, moved), in_float64(node.kwargs, moved), position)

    return _rerun(node, whole, torch.float64, device, deadline, "it cannot run in float64: ")


def rerun_same(node: Node, deadline: Deadline) -> Rerun:
    """Do the op again on the same device: other bits mean hardware or a race.

    Where the bits are not those of the run it is executed several times more: a kernel may be of two minds.
    """
    if why := _why_not_same(node):
        return Rerun(why_not=why)

    def again(position: int) -> torch.Tensor | None:
        with numerics_entered(node.numerics):
            return execute(node.func, node.args, node.kwargs, position)

    return _rerun(node, again, None, None, deadline)


def rerun_on_cpu(node: Node, deadline: Deadline) -> Rerun:
    """Do the op again on the CPU: other values mean the device's kernel."""
    if why := _why_not_same(node):
        return Rerun(why_not=why)

    def whole(position: int) -> torch.Tensor | None:
        args, kwargs = (map_tensors(given, lambda t: t.to("cpu")) for given in (node.args, node.kwargs))
        with numerics_entered(node.numerics):
            return execute(node.func, args, kwargs, position)

    return _rerun(node, whole, None, torch.device("cpu"), deadline)


def _why_not_same(node: Node) -> str:
    return _why_not(node) or ("it draws random numbers" if is_random(node.func) else "")


def _rerun(
    node: Node,
    whole: Callable[[int], torch.Tensor | None],
    dtype: torch.dtype | None,
    device: torch.device | None,
    deadline: Deadline,
    refused: str = "",
) -> Rerun:
    """Do an op again, as a whole or, where that is too much or no kernel does it, in the rows that tell most.

    Args:
        whole: executes it; takes which of its results is wanted.
        dtype: of what is done again; None: its own.
        device: where; None: where it ran, which took no longer in the run.
        refused: put before what the op's own kernel says.
    """
    original, at = bad_output(node), _bad_at(node)
    if original is None or at is None:
        return Rerun(why_not="it has no comparable output")
    if deadline.is_over:
        return Rerun(why_not="the time for this step was over")
    position = node.positions[at]
    if device is None:
        return _again_and_again(functools.partial(_tried, whole, position), original, node, refused)
    allowed = Allowance(seconds=min(RERUN_S, deadline.left_s / 4), device=device, dtype=dtype or original.dtype)
    why_not = allowed.refuses(effort(node.func, node.args, node.kwargs, node.outputs))
    found = f"not done again {_place(dtype, device)}: {why_not}" if why_not else _tried(whole, position)
    if isinstance(found, str):
        part = _some_rows(node, original, position, dtype, device, allowed)
        return part if part is not None else Rerun(why_not=found if why_not else f"{refused}{found}")
    return _told(found, original, node, refused)


def _again_and_again(
    again: Callable[[], torch.Tensor | str | None], original: torch.Tensor, node: Node, refused: str
) -> Rerun:
    """Do the op again where it ran; if that gives other bits than the run, several times more."""
    first = again()
    found = _told(first, original, node, refused)
    if not found.ran or found.equal_bits or not isinstance(first, torch.Tensor):
        return found

    def more() -> torch.Tensor | None:
        result = again()
        return result if isinstance(result, torch.Tensor) else None

    return repeated(found, more, _equal_bits, first, original)


def _place(dtype: torch.dtype | None, device: torch.device) -> str:
    words = ["in float64"] if dtype is not None else []
    return " ".join([*words, "on the CPU" if device.type == "cpu" else f"on {device.type}"])


def _tried(whole: Callable[[int], torch.Tensor | None], position: int) -> torch.Tensor | str | None:
    """Return the result, or a text that says why there is none."""
    try:
        return whole(position)
    except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0][:120]


def _told(found: torch.Tensor | str | None, original: torch.Tensor, node: Node, refused: str) -> Rerun:
    if isinstance(found, str):
        return Rerun(why_not=f"{refused}{found}")
    if found is None or found.shape != original.shape:
        return Rerun(why_not="it has no comparable output")
    return _compared(found, original.to(found.device), bad_mask(original, node).to(found.device))


def _some_rows(
    node: Node,
    original: torch.Tensor,
    position: int,
    dtype: torch.dtype | None,
    device: torch.device,
    allowed: Allowance,
) -> Rerun | None:
    """Do rows that hold bad elements again, then others, as many as are allowed; None where there is no such way."""
    rows = by_rows(node.func, node.args, node.kwargs, node.outputs, position)
    if rows is None or allowed.refuses(rows.of_one):
        return None
    mask = as_rows(bad_mask(original, node), rows)
    picked = chosen(mask.any(1).nonzero()[:, 0], rows.n, int(allowed.flops / max(1.0, rows.of_one.flops)))
    try:
        with torch.no_grad():
            found = rows.done(picked, dtype, device)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    here = picked.to(original.device)
    done = _compared(found, as_rows(original, rows)[here].to(device), mask[here].to(device))
    return done if len(picked) == rows.n else replace(done, part=f"{len(picked):,} of {rows.n:,} rows")


def _compared(found: torch.Tensor, original: torch.Tensor, bad: torch.Tensor) -> Rerun:
    there = found[bad]
    finite = torch.isfinite(there)
    return Rerun(
        ran=True,
        finite=bool(finite.all()),
        absmax=float(there[finite].abs().max()) if bool(finite.any()) else 0.0,
        n_nonfinite=int((~finite).sum()),
        equal_bits=_equal_bits(found, original),
    )


def _equal_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype != b.dtype:
        return False
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    return bool(same.all())


def limit_of(dtype: torch.dtype) -> float | None:
    """Return the largest value of a floating format; None for others."""
    return float(torch.finfo(dtype).max) if dtype.is_floating_point else None


def chips(tensor: torch.Tensor) -> tuple[str, ...]:
    """Count each kind of non-finite value, in words such as "+inf ×12"."""
    counts = (
        ("NaN", int(torch.isnan(tensor).sum())),
        ("+inf", int(torch.isposinf(tensor).sum()) if not tensor.is_complex() else 0),
        ("-inf", int(torch.isneginf(tensor).sum()) if not tensor.is_complex() else 0),
    )
    return tuple(f"{kind} ×{count:,}" for kind, count in counts if count)


def tensor_facts(tensor: torch.Tensor, name: str, origin: str = "", literal: bool = False) -> TensorFacts:
    """Describe a tensor as plain facts."""
    return TensorFacts(
        name=name,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        summary=summarize(tensor),
        origin=origin,
        literal_inf=literal,
    )


def op_facts(tracer: OpTracer, node: Node, *, detailed: bool = True) -> OpFacts:
    """Describe an op as plain facts; detailed ones need captured arguments."""
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
        stack=place.stack() if detailed else (),
        node=place.node,
        inputs=tuple(inputs),
        outputs=tuple(tensor_facts(t, f"out[{i}]") for i, t in enumerate(node.outputs)) if detailed else (),
        scalars={**scalars, **({"backward_op": node.traced.op} if place.phase == "backward" else {})},
    )


def describe_producer(tracer: OpTracer, producer: int) -> str:
    """Say in words what made a tensor."""
    if producer < 0:
        leaf: Leaf = tracer.leaves[-1 - producer]
        return f"{leaf.kind} {leaf.name}".strip()
    node = tracer.nodes[producer]
    return f"{node.traced.op} in {node.place.site or 'the model'}"
