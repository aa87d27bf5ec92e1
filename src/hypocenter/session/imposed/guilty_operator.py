"""The operator of a compiled graph that computes something else than it does uncompiled.

A graph that TorchDynamo made is cut off behind an operator; what is left of it is run as it is and compiled, forward
and backward, on the inputs of its first call. The two are apart where they differ by more than what an ulp on every
input makes of them. A cut that holds the guilty operator is apart and one that does not is not, so it is found by
bisection: a graph of n operators is compiled log2(n) times.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from hypocenter.nouns import Source
from hypocenter.twins.guilty import Guilty

Compile = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
_ROUNDINGS, _OF_HALF = 32, 4  # so much compiled code, which orders and fuses otherwise, may be apart
_NOISE = 16  # times what an ulp on the inputs makes of it
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)\n\s*(?P<text>[^\n]*)')
_CONTEXTS = ("_enter_autocast", "_exit_autocast")


def guilty_operator(graph: fx.Graph, inputs: Sequence[Any], compile: Compile) -> Guilty | None:
    """Find the first operator that computes something else compiled; None where the whole graph is not apart.

    Args:
        graph: of TorchDynamo; tensors that it was traced with stand in `meta["example_value"]`.
        inputs: of its first call; they are left as they are.
        compile: a backend of `torch.compile`.
    """
    nodes = [node for node in graph.nodes if node.op not in ("placeholder", "output", "get_attr")]

    def apart(n: int) -> tuple[str, float, float] | None:
        cut = fx.GraphModule(graph.owning_module or torch.nn.Module(), _cut(graph, nodes[:n]))
        return _apart(cut, inputs, compile)

    said = apart(len(nodes))
    if said is None:
        return None
    right, wrong = 0, len(nodes)
    while wrong - right > 1:
        middle = (right + wrong) // 2
        found = apart(middle)
        if found is None:
            right = middle
        else:
            wrong, said = middle, found
    node = nodes[wrong - 1]
    part, error, noise = said
    return Guilty(
        operator=_name(node),
        site=_site(node),
        part=part,
        error=error if math.isfinite(error) else None,
        noise=noise,
        n_operators=len(nodes),
        source=_source(node),
    )


def _cut(graph: fx.Graph, kept: Sequence[fx.Node]) -> fx.Graph:
    """Cut the graph down to these operators; its outputs are what the others, or its output, took of them."""
    cut, made, inside = fx.Graph(), dict[fx.Node, fx.Node](), set(kept)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr") or node in inside:
            made[node] = cut.node_copy(node, made.__getitem__)
    for node in graph.nodes:  # a region that was entered is left
        if node not in inside and _name(node) == _CONTEXTS[1] and node.args[0] in inside:
            made[node] = cut.node_copy(node, made.__getitem__)
    outputs = list[fx.Node]()
    for node in kept:
        value = node.meta.get("example_value")
        if all(user in inside for user in node.users):
            continue
        if isinstance(value, Tensor):
            outputs.append(made[node])
        elif isinstance(value, tuple | list):
            outputs += [
                cut.call_function(operator.getitem, (made[node], n))
                for n, one in enumerate(value)
                if isinstance(one, Tensor)
            ]
    cut.output(tuple(outputs))
    return cut


def _apart(cut: fx.GraphModule, inputs: Sequence[Any], compile: Compile) -> tuple[str, float, float] | None:
    """Find the first value that is apart; return (part of the step, distance, how much is noise), or None."""
    right, again = _computed(cut, inputs), _computed(cut, [_nudged(one) for one in inputs])
    theirs = _computed(compile(fx.GraphModule(cut, cut.graph), [_copied(one) for one in inputs]), inputs)
    rounding = _rounding(cut.graph)
    if len(theirs) != len(right):  # no gradient goes through it, or only there
        return "backward", float("inf"), rounding
    for (part, mine), (_, nudged), (_, other) in zip(right, again, theirs, strict=True):
        noise = max(rounding, _NOISE * _distance(mine, nudged))
        error = _distance(mine, other)
        if error > noise:
            return part, error, noise
    return None


def _rounding(graph: fx.Graph) -> float:
    """Return what rounding may make of any value: that of the coarsest format in the graph."""
    values = [node.meta.get("example_value") for node in graph.nodes]
    formats = {one.dtype for one in values if isinstance(one, Tensor) and one.is_floating_point()}
    eps = max((torch.finfo(one).eps for one in formats), default=0.0)
    return eps * (_OF_HALF if eps > torch.finfo(torch.float32).eps else _ROUNDINGS)


def _computed(call: Callable[..., Any], inputs: Sequence[Any]) -> list[tuple[str, Tensor]]:
    """Return all floating-point values that a call leaves: its outputs, its inputs, and their gradients."""
    copies = [_copied(one) for one in inputs]
    # One that is no leaf may be written to in place, so the graph is given a copy of the copy.
    given = [
        copy.clone() if isinstance(one, Tensor) and not one.is_leaf else copy
        for one, copy in zip(inputs, copies, strict=True)
    ]
    with torch.random.fork_rng(devices=[]), _same_modes():
        torch.manual_seed(0)
        outputs = [one for one in call(*given) if isinstance(one, Tensor)]
    values = [one for one in (*outputs, *given) if isinstance(one, Tensor) and one.is_floating_point()]
    found = [("forward", one.detach()) for one in values]
    asked = [one for one in copies if isinstance(one, Tensor) and one.requires_grad]
    ends = [one for one in outputs if one.requires_grad and one.is_floating_point()]
    if asked and ends:
        draw = torch.Generator().manual_seed(0)
        weights = [torch.randn(one.shape, generator=draw, device="cpu").to(one) for one in ends]
        with contextlib.ExitStack() as calm:  # as training does: backward is outside of all regions
            for device in {one.device.type for one in ends}:
                calm.enter_context(torch.autocast(device, enabled=False))
            grads: Any = torch.autograd.grad(ends, asked, weights, allow_unused=True)
        found += [
            ("backward", torch.zeros_like(one) if grad is None else grad.detach())
            for one, grad in zip(asked, grads, strict=True)
            if one.is_floating_point()
        ]
    return found


@contextlib.contextmanager
def _same_modes() -> Generator[None, None, None]:
    """Restore whether gradients are on after a call: a graph that is cut may leave them switched otherwise."""
    with torch.set_grad_enabled(torch.is_grad_enabled()):
        yield


def _copied(one: Any) -> Any:
    return one.detach().clone().requires_grad_(one.requires_grad) if isinstance(one, Tensor) else one


def _nudged(one: Any) -> Any:
    """Move a tensor of float32 or float64 by an ulp; half formats stay, as their ulp is a change that shows."""
    if not isinstance(one, Tensor) or one.dtype not in (torch.float32, torch.float64):
        return one
    moved = torch.nextafter(one.detach(), torch.full_like(one, torch.inf))
    moved = moved.requires_grad_(one.requires_grad)
    return moved if one.is_leaf or not one.requires_grad else moved.clone()


def _distance(right: Tensor, other: Tensor) -> float:
    """Return the distance relative to the right one; infinite where only one of them is not finite."""
    if right.shape != other.shape:
        return float("inf")
    mine, theirs = right.double(), other.double()
    finite = mine.isfinite() & theirs.isfinite()
    if not torch.equal(mine[~finite].nan_to_num(), theirs[~finite].nan_to_num()):
        return float("inf")
    apart, size = (mine - theirs)[finite].norm().item(), mine[finite].norm().item()
    return apart / size if size else float("inf") if apart else 0.0


def _name(node: fx.Node) -> str:
    target = node.target
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    in_place = name.lstrip("_")
    return name if not in_place.startswith("i") or target not in _IN_PLACE else f"{in_place[1:]}_"


_IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.imatmul, operator.ipow)


def _site(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return re.sub(r"^L\[[^\]]*\]\.?", "", str(stack[-1][0])) if stack else ""


def _source(node: fx.Node) -> Source | None:
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return None
    last = frames[-1]
    return Source(file=last["file"], line=int(last["line"]), text=last["text"].strip(), function=last["function"])
