"""From a blame to facts: the op or leaf where it started, adjudicated, with its operands, elements and path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypocenter.diagnose.evidence import Evidence, OpFacts
from hypocenter.diagnose.origin import Blame, selector_of
from hypocenter.replay.witness import Witness

MAX_KILLED = 6  # harmless non-finite values listed beside the blamed one
MAX_PATH = 12  # ops of the path from origin to loss that are kept: the first eight and the last four


def testify(witness: Witness, base: Evidence, found: Blame) -> tuple[Evidence, int | None, Any]:
    """Fill in what the trace knows about the blamed value.

    Returns:
        The evidence, the index of the op that a bundle can be made from, and the mask of bad elements of its output or
        of the leaf.
    """
    evidence = replace(
        base,
        reproduced=True,
        nan_maker=_brief(witness, found.nan_maker) if found.nan_maker != found.origin else None,
        multiplier_zero=_brief(witness, found.zero_factor),
        path=_all_brief(witness, _thin(found.path)),
        killed=_all_brief(witness, found.killed[:MAX_KILLED]),
    )
    if found.leaf is not None:
        op = found.zero_factor if found.zero_factor is not None else next(iter(found.path), None)
        evidence, mask = _leaf(evidence, witness, found.leaf)
        evidence = replace(evidence, origin=witness.op(op) if op is not None else None)
    else:
        op = found.origin
        evidence, mask = _origin(evidence, witness, op) if op is not None else (evidence, None)
    return _hidden_in_forward(witness, evidence, found, op), op, mask


def _brief(witness: Witness, index: int | None) -> OpFacts | None:
    return None if index is None else witness.op(index, detailed=False)


def _all_brief(witness: Witness, indices: tuple[int, ...]) -> tuple[OpFacts, ...]:
    return tuple(witness.op(i, detailed=False) for i in indices)


def _thin(path: tuple[int, ...]) -> tuple[int, ...]:
    return path if len(path) <= MAX_PATH else path[:8] + path[-4:]


def _leaf(evidence: Evidence, witness: Witness, index: int) -> tuple[Evidence, Any]:
    leaf = witness.leaf(index)
    if leaf is None:
        return evidence, None
    evidence = replace(
        evidence,
        leaf=leaf.facts,
        leaf_kind=leaf.kind if leaf.kind in ("batch", "param", "buffer") else "external",  # type: ignore[arg-type]
        chips=leaf.bad.chips,
        indices=leaf.bad.indices,
        index_shape=leaf.bad.shape,
    )
    return evidence, leaf.bad.mask


def _origin(evidence: Evidence, witness: Witness, index: int) -> tuple[Evidence, Any]:
    done = witness.rerun(index)
    evidence = replace(evidence, origin=witness.op(index), float64=done.float64, again=done.again, cpu=done.cpu)
    bad = witness.bad_output(index)
    if bad is None:
        return evidence, None
    evidence = replace(evidence, chips=bad.chips, indices=bad.indices, index_shape=bad.shape, limit=bad.limit)
    return evidence, bad.mask


def _hidden_in_forward(witness: Witness, evidence: Evidence, found: Blame, op: int | None) -> Evidence:
    """Say whether the bad value was masked away in forward and came back in backward, and by what."""
    facts = dict(evidence.facts)
    trace = witness.trace()
    start = found.origin if found.origin is not None else -1 - (found.leaf or 0)
    selector = selector_of(trace, start)
    if evidence.forward_finite and selector is not None:
        facts["selected_by"] = trace[selector].op
    if op is not None:
        facts.update(witness.measured(op))
    in_forward = op is None or trace[op].phase in ("forward", "loss")
    if found.leaf is not None and not in_forward:
        in_forward = _is_read_in_forward(witness, found.leaf)
    return replace(
        evidence,
        killed_in_forward=evidence.forward_finite
        and in_forward
        and evidence.trigger in ("nonfinite-grad", "skipped-step"),
        upstream_grad_zero=witness.upstream_grad_zero(op) if op is not None and found.leaf is None else None,
        facts=facts,
    )


def _is_read_in_forward(witness: Witness, leaf: int) -> bool:
    """Return whether an op before backward had this leaf among its inputs; a leaf that a hook brings has none."""
    producer = -1 - leaf
    readers = (op for op in witness.trace() if any(edge.producer == producer for edge in op.inputs))
    return any(op.phase != "backward" for op in readers)
