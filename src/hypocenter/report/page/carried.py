"""Which loss scale the gradients of a grid contain, step by step: what a what-if at another scale starts from."""

from __future__ import annotations

# pyright: reportAttributeAccessIssue=false
# (pyarrow.compute makes its functions when it is imported)
import math
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from hypocenter.diagnose.evidence import Evidence
from hypocenter.nouns import StepRecord
from hypocenter.report.headroom.scales import carried_scales

PHASES = ("backward", "grad", "scaler")


def replayed_scales(evidence: Iterable[Evidence]) -> dict[int, float]:
    """By step, the loss scale at which a failed step was executed again, where that was not the step's own."""
    return {e.step: e.replayed_scale for e in evidence if e.replayed_scale is not None}


def carried_of(
    table: pa.Table,
    records: Sequence[tuple[int, StepRecord]],
    steps: Sequence[int],
    replayed: Mapping[int, float] | None = None,
) -> dict[str, list[float]]:
    """log2 of the loss scale in the values of each phase of PHASES, one per step of `steps`; 0 without a scaler.

    Args:
        replayed: of a grid of replayed steps: their scales (see `replayed_scales`).
    """
    by_step: dict[int, float] = {}
    for _, record in sorted(records, key=lambda pair: -pair[0]):  # the lowest rank has the last word
        scale = (replayed or {}).get(record.step, record.loss_scale)
        if scale is not None and 0.0 < scale < math.inf:
            by_step[record.step] = math.log2(scale)
    in_backward = [by_step.get(step, by_step.get(step - 1, 0.0)) for step in steps]
    in_grads = _of_grads(table, records) if by_step else {}
    usual = next(iter(in_grads.values()), 0.0)
    return {
        "backward": in_backward,
        "grad": [in_grads.get(step, usual) for step in steps],
        "scaler": [by_step.get(step, 0.0) for step in steps],
    }


def _of_grads(table: pa.Table, records: Sequence[tuple[int, StepRecord]]) -> dict[int, float]:
    """Of parameters' gradients in full: the program may have taken the scale out before they were read."""
    grads = table.filter(pc.and_(pc.equal(table["phase"], "grad"), pc.greater(table["n_hist"], 0)))
    if grads.num_rows == 0:
        return {}
    carried, _ = carried_scales(grads, records)
    return {step: math.log2(scale) for step, scale in zip(grads["step"].to_pylist(), carried, strict=True)}
