"""Adjudicate by doing it again: an operator of MindSpore in float64 and on the same device; its operands as facts."""

from __future__ import annotations

from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
import numpy as np
from mindspore._c_expression import typing  # pyright: ignore[reportMissingImports]
from numpy.typing import NDArray

from hypocenter.diagnose.evidence import OpFacts, Rerun, TensorFacts
from hypocenter.diagnose.numbers import LARGEST
from hypocenter.diagnose.operators import CAST, RANDOM
from hypocenter.operator_names import canonical
from hypocenter.replay.mindspore.host import FLOATS, Held, flat, held, is_floating, same_values, values
from hypocenter.replay.mindspore.trace import Node, OpTracer
from hypocenter.replay.witness import BadValues
from hypocenter.summary.reducers.numpy import summarize

MAX_INDICES = 16
_DTYPES = ("dtype",)  # argument names that hold a format


def bad_output(node: Node) -> Held | None:
    """The first output that is not finite."""
    return next((out for out in node.outputs if not bool(np.isfinite(out.array).all())), None)


def bad_mask(array: NDArray[Any]) -> NDArray[np.bool_]:
    """Where it is not finite, leaving out constants of the program (a mask's -inf) when NaN is the news."""
    nan = np.isnan(array)
    return nan if bool(nan.any()) else ~np.isfinite(array)


def bad_values(found: Held, mask: NDArray[np.bool_]) -> BadValues:
    """What is known of elements that are not finite."""
    return BadValues(
        chips=_chips(found.array),
        indices=tuple(tuple(int(i) for i in row) for row in np.argwhere(mask)[:MAX_INDICES]),
        shape=tuple(found.array.shape),
        limit=LARGEST.get(found.dtype),
        mask=mask,
    )


def _chips(array: NDArray[Any]) -> tuple[str, ...]:
    counts = (("NaN", np.isnan(array)), ("+inf", array == np.inf), ("-inf", array == -np.inf))
    return tuple(f"{kind} ×{int(there.sum()):,}" for kind, there in counts if there.any())


def rerun_float64(node: Node) -> Rerun:
    """The op in float64: finite means that the format was too small, not that the mathematics is singular."""
    original = bad_output(node)
    if node.func is None or node.args is None or original is None:
        return Rerun(why_not=_not_kept(node))
    try:
        if canonical(node.traced.op) in CAST:
            result = values(next(flat(node.args))).astype(np.float64)
        else:
            result = _first(node.func(*_widened(node.args, node.names)))
    except NotImplementedError as error:
        return Rerun(why_not=_line(error))
    except Exception as error:  # a kernel that knows no float64
        return Rerun(why_not=f"it cannot run in float64: {_line(error)}")
    return _compared(result, original)


def rerun_same(node: Node) -> Rerun:
    """The op again on the same device: other bits mean hardware or a race."""
    original = bad_output(node)
    if node.func is None or node.args is None or original is None:
        return Rerun(why_not=_not_kept(node))
    if canonical(node.traced.op) in RANDOM:
        return Rerun(why_not="it draws random numbers")
    try:
        result = _first(node.func(*node.args))
    except Exception as error:
        return Rerun(why_not=_line(error))
    return _compared(result, original)


def _not_kept(node: Node) -> str:
    if node.func is None and node.outputs:
        return "MindSpore does not show this operator: it cannot be executed alone"
    return "its inputs were not kept (too large)"


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _first(result: Any) -> NDArray[Any] | None:
    return next((values(t) for t in flat(result) if is_floating(t)), None)


def _compared(result: NDArray[Any] | None, original: Held) -> Rerun:
    if result is None or result.shape != original.array.shape:
        return Rerun(why_not="it has no comparable output")
    there = result[bad_mask(original.array)]
    finite = np.abs(there[np.isfinite(there)])
    return Rerun(
        ran=True,
        finite=finite.size == there.size,
        absmax=float(finite.max()) if finite.size else 0.0,
        n_nonfinite=int(there.size - finite.size),
        equal_bits=same_values(result, original.array),
    )


def _widened(value: Any, names: tuple[str, ...] = ()) -> Any:
    """Floating tensors and requested floating formats widened to float64."""
    if isinstance(value, ms.Tensor):
        return ms.Tensor(values(value).astype(np.float64)) if value.dtype in FLOATS else value
    if isinstance(value, (list, tuple)):
        wide = [_widened(item) for item in value]
        for i, name in enumerate(names[: len(wide)]):
            if name in _DTYPES and isinstance(wide[i], int):
                wide[i] = typing.type_to_type_id(ms.float64)
        return type(value)(wide)
    return value


def tensor_facts(found: Held, name: str, origin: str = "", *, literal: bool = False) -> TensorFacts:
    """A tensor as plain facts."""
    return TensorFacts(
        name=name,
        dtype=found.dtype,
        shape=tuple(found.array.shape),
        summary=summarize(found.array),
        origin=origin,
        literal_inf=literal,
    )


def op_facts(tracer: OpTracer, node: Node, *, detailed: bool = True) -> OpFacts:
    """An op as plain facts; detailed ones need captured arguments."""
    place = node.place
    is_backward = place.phase == "backward"
    return OpFacts(
        index=node.traced.index,
        op=place.forward_op if is_backward and place.forward_op else node.traced.op,
        phase=place.phase,
        site=place.site,
        module=place.module,
        port="grad_in[0]" if is_backward else "out[0]",
        source=place.source(),
        inputs=_inputs(tracer, node) if detailed else (),
        outputs=tuple(tensor_facts(out, f"out[{i}]") for i, out in enumerate(node.outputs)) if detailed else (),
        scalars={**(node.scalars if detailed else {}), **({"backward_op": node.traced.op} if is_backward else {})},
    )


def _inputs(tracer: OpTracer, node: Node) -> tuple[TensorFacts, ...]:
    found: list[TensorFacts] = []
    position = 0
    for name, value in zip(node.names, operands(node), strict=False):
        for tensor in flat(value):
            edge = node.traced.inputs[position] if position < len(node.traced.inputs) else None
            position += 1
            origin = describe_producer(tracer, edge.producer) if edge is not None else ""
            literal = edge is not None and bool(edge.bits) and not edge.real
            found.append(tensor_facts(held(tensor), name, origin, literal=literal))
    return tuple(found)


def operands(node: Node) -> tuple[Any, ...]:
    """The captured arguments, without what the older kind of operator has in front."""
    args: Any = node.args or ()
    is_old = len(args) == 3 and isinstance(args[0], ms.ops.Primitive) and isinstance(args[2], tuple)
    return args[2] if is_old else tuple(args)


def describe_producer(tracer: OpTracer, producer: int) -> str:
    """Who made a tensor, in words."""
    if producer < 0:
        leaf = tracer.leaves[-1 - producer]
        return f"{leaf.kind} {leaf.name}".strip()
    node = tracer.nodes[producer]
    return f"{node.traced.op} in {node.place.site or 'the model'}"
