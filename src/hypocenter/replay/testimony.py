"""From a blame to facts: the op or leaf where it started, adjudicated, with its operands, elements and path."""

from __future__ import annotations

from dataclasses import replace

import torch

from hypocenter.diagnose.evidence import Evidence, OpFacts, Rerun
from hypocenter.diagnose.origin import Blame, selector_of
from hypocenter.replay import adjudicate, probes
from hypocenter.replay.case import Scene
from hypocenter.tap.tracer import Leaf, Node, OpTracer

MAX_KILLED = 6  # harmless non-finite values listed beside the blamed one
MAX_PATH = 12  # ops of the path from origin to loss that are kept: the first eight and the last four


def testify(scene: Scene, base: Evidence, found: Blame) -> tuple[Evidence, Node | None, torch.Tensor | None]:
    """Fill in what the trace knows about the blamed value.

    Returns:
        The evidence, the op that a bundle can be made from, and the mask of bad elements of its output or of the leaf.
    """
    tracer = scene.tracer
    evidence = replace(
        base,
        reproduced=True,
        nan_maker=_brief(tracer, found.nan_maker) if found.nan_maker != found.origin else None,
        multiplier_zero=_brief(tracer, found.zero_factor),
        path=_all_brief(tracer, _thin(found.path)),
        killed=_all_brief(tracer, found.killed[:MAX_KILLED]),
    )
    if found.leaf is not None:
        node = _first_use(tracer, found)
        evidence, mask = _leaf(evidence, tracer.leaves[found.leaf])
        evidence = replace(evidence, origin=adjudicate.op_facts(tracer, node) if node is not None else None)
    else:
        node = tracer.nodes[found.origin] if found.origin is not None else None
        evidence, mask = _origin(evidence, tracer, node) if node is not None else (evidence, None)
    return _hidden_in_forward(scene, evidence, found, node), node, mask


def _brief(tracer: OpTracer, index: int | None) -> OpFacts | None:
    return None if index is None else adjudicate.op_facts(tracer, tracer.nodes[index], detailed=False)


def _all_brief(tracer: OpTracer, indices: tuple[int, ...]) -> tuple[OpFacts, ...]:
    return tuple(adjudicate.op_facts(tracer, tracer.nodes[i], detailed=False) for i in indices)


def _thin(path: tuple[int, ...]) -> tuple[int, ...]:
    return path if len(path) <= MAX_PATH else path[:8] + path[-4:]


def _first_use(tracer: OpTracer, found: Blame) -> Node | None:
    """Of a bad leaf: the product that tried to mask it, or the first op that read it."""
    index = found.zero_factor if found.zero_factor is not None else next(iter(found.path), None)
    return None if index is None else tracer.nodes[index]


def _leaf(evidence: Evidence, leaf: Leaf) -> tuple[Evidence, torch.Tensor | None]:
    if leaf.tensor is None:
        return evidence, None
    mask = ~torch.isfinite(leaf.tensor)
    evidence = replace(
        evidence,
        leaf=adjudicate.tensor_facts(leaf.tensor, leaf.name),
        leaf_kind=leaf.kind if leaf.kind in ("batch", "param", "buffer") else "external",  # type: ignore[arg-type]
        chips=adjudicate.chips(leaf.tensor),
        indices=tuple(tuple(int(i) for i in row) for row in mask.nonzero()[: adjudicate.MAX_INDICES].tolist()),
        index_shape=tuple(leaf.tensor.shape),
    )
    return evidence, mask


def _origin(evidence: Evidence, tracer: OpTracer, node: Node) -> tuple[Evidence, torch.Tensor | None]:
    on_device = any(t.device.type != "cpu" for t in node.outputs)
    evidence = replace(
        evidence,
        origin=adjudicate.op_facts(tracer, node),
        float64=adjudicate.rerun_float64(node),
        again=adjudicate.rerun_same(node),
        cpu=adjudicate.rerun_same(node, "cpu") if on_device else Rerun(why_not="it ran on the CPU"),
    )
    output = adjudicate.bad_output(node)
    if output is None:
        return evidence, None
    evidence = replace(
        evidence,
        chips=adjudicate.chips(output),
        indices=adjudicate.indices(output, node),
        index_shape=tuple(output.shape),
        limit=adjudicate.limit_of(output.dtype),
    )
    return evidence, adjudicate.bad_mask(output, node)


def _hidden_in_forward(scene: Scene, evidence: Evidence, found: Blame, node: Node | None) -> Evidence:
    """Whether the bad value was masked away in forward and came back in backward, and by what."""
    facts = dict(evidence.facts)
    start = found.origin if found.origin is not None else -1 - (found.leaf or 0)
    selector = selector_of(scene.tracer.trace(), start)
    if evidence.forward_finite and selector is not None:
        facts["selected_by"] = scene.tracer.nodes[selector].traced.op
    if node is not None:
        facts.update(probes.facts(node, scene.tracer))
    in_forward = node is None or node.place.phase in ("forward", "loss")
    if found.leaf is not None and not in_forward:
        in_forward = _is_read_in_forward(scene.tracer, found.leaf)
    return replace(
        evidence,
        killed_in_forward=evidence.forward_finite
        and in_forward
        and scene.case.trigger in ("nonfinite-grad", "skipped-step"),
        upstream_grad_zero=probes.upstream_grad_zero(node) if node is not None and found.leaf is None else None,
        facts=facts,
    )


def _is_read_in_forward(tracer: OpTracer, leaf: int) -> bool:
    """Whether an op before backward had this leaf among its inputs; one that a hook on a gradient brings has none."""
    producer = -1 - leaf
    readers = (node for node in tracer.nodes if any(edge.producer == producer for edge in node.traced.inputs))
    return any(node.place.phase != "backward" for node in readers)
