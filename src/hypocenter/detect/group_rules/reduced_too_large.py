"""The reduced gradient counts each label several times: context parallelism is left out of its scaling.

What it means
    The ranks of a context-parallel group share a sequence; each takes the mean of the loss over its own part. The
    gradient of the whole batch is then the mean over data-parallel *and* context-parallel ranks. Here it was summed
    over both and divided by the former only: every gradient is as many times too large as there are ranks to a
    sequence. With an optimizer that does not normalise, or with clipping, training goes otherwise than without context
    parallelism.

How it is decided
    At the steps of `replicas`: from linear sketches of the gradients before and after their reduction, the factor
    between the one that the optimizer is given (clipping taken out) and the mean of those of all ranks with the same
    weights; and from what cross-entropy gives back in backward, the weight of all labels of a rank in its own loss.
    Their product is what the labels of the batch weigh together: 1 is right. It fires, once, when it is the size of
    the context-parallel group, within 1 %, for every gradient looked at.

What to do
    Divide by the number of data-parallel times context-parallel ranks, or average over the group of both.

When it is wrong
    When the loss of a rank is meant to be a sum over the ranks of a sequence, and is yet divided by its own labels
    only. A loss divided by the labels of the whole sequence weighs less on each rank, and is not accused. Losses that
    are no cross-entropy are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.local_rows import LOCAL, NORM
from hypocenter.detect.microbatch_rows import LABEL_WEIGHT
from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_rows import CLIP, GRAD
from hypocenter.nouns import Finding, Remedy

CODE = "HC333"
SITES = 16  # gradients that are compared
WITHIN = 0.01  # relative: what rounding of a reduction in bfloat16 leaves
_Vectors = Mapping[tuple[int, str], npt.NDArray[np.float64]]


@group_rule(CODE, "config", severity="warning", reads=("local", "digest", "scalar"), asked="unlike")
def check(panel: Panel) -> Iterator[Finding]:
    """Report once, for the first group of ranks that have the same weights."""
    notes = panel.history.notes[CODE]
    pairs = panel.groups("cp")
    if notes.get("is_said") or not pairs or not panel.table.num_rows:
        return
    weights = _weights(panel)
    if not weights:
        return
    size, rank = len(pairs[0]), pairs[0][0]
    here = panel.coords(rank)
    group = [r for r in panel.ranks if (panel.coords(r).tp, panel.coords(r).pp) == (here.tp, here.pp)]
    if not set(group) <= set(weights) or len(group) < size:
        return
    factors = _factors(panel, group)
    whole = float(np.mean([weights[r] for r in group]))
    products = {site: factor * whole for site, factor in factors.items()}
    if products and all(abs(product - size) <= WITHIN * size for product in products.values()):
        notes["is_said"] = True
        yield _finding(panel, group, size, products, whole)


def _weights(panel: Panel) -> dict[int, float]:
    rows = panel.where(site=LABEL_WEIGHT, port="value")
    return dict(zip(rows["rank"].to_pylist(), rows["sum"].to_pylist(), strict=True))


def _factors(panel: Panel, group: list[int]) -> dict[str, float]:
    """Return by parameter its gradient at the optimizer as a multiple of the ranks' mean before the reduction."""
    import pyarrow as pa
    import pyarrow.compute as pc

    used = _sketches(panel.where(port=GRAD), group[:1])
    table = panel.where(port=LOCAL)
    names = [site for _, site in used][:SITES]
    local = _sketches(
        table.filter(pc.and_(pc.is_in(table["site"], pa.array(names)), pc.equal(table["call"], NORM))), group
    )
    sites = [site for site in names if all((rank, site) in local for rank in group)]
    clipped = panel.where(site=CLIP, port="value")
    coefficient = next((v for r, v in _pairs(clipped, "sum") if r == group[0] and v > 0), 1.0)
    found: dict[str, float] = {}
    for site in sites:
        mean = np.mean([local[rank, site] for rank in group], axis=0)
        gradient = used[group[0], site] / coefficient
        size = float(mean @ mean)
        if size <= 0 or not np.isfinite(size) or not np.isfinite(gradient).all():
            continue
        factor = float(gradient @ mean) / size
        if np.linalg.norm(gradient - factor * mean) > WITHIN * np.linalg.norm(gradient):
            return {}  # something else was done to it: a moving average, compression, another reduction
        found[site] = factor
    return found


def _sketches(table: Any, ranks: list[int]) -> _Vectors:
    """Return sketches by rank and parameter, those of all micro-batches added up."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = table.filter(pc.and_(pc.is_in(table["rank"], pa.array(ranks, pa.int32())), pc.is_valid(table["sketch"])))
    found: dict[tuple[int, str], Any] = {}
    for rank, site, sketch in zip(*(table[n].to_pylist() for n in ("rank", "site", "sketch")), strict=True):
        vector = np.asarray(sketch, np.float64)
        found[rank, site] = found[rank, site] + vector if (rank, site) in found else vector
    return found


def _pairs(table: Any, column: str) -> Iterator[tuple[int, float]]:
    yield from zip(table["rank"].to_pylist(), table[column].to_pylist(), strict=True)


def _finding(panel: Panel, group: list[int], size: int, products: Mapping[str, float], whole: float) -> Finding:
    name, n = next(iter(products)), len(group)
    return Finding(
        code=CODE,
        kind="config",
        severity="warning",
        title=f"reduced gradients are {size} times those of the batch: context parallelism is not in their scaling",
        step=panel.step,
        rank=group[0],
        phase="grad",
        site=name,
        port="grad",
        param=name,
        cause="config-mismatch",
        limit=1.0,
        actual=products[name],
        why=(
            f"the gradient of {name} is {products[name] / whole:.4g} times the mean of those that the {n} ranks with "
            f"the same weights had before the reduction; so are all {len(products)} that were compared",
            f"the labels of a rank weigh {whole:.4g} in its own loss: together each of the batch counts {size} times",
            f"{size} ranks share a sequence: the divisor is {n // size}, not {n}",
        ),
        confidence="likely",
        remedy=Remedy(
            action="divide-by-dp-cp",
            text="average over data-parallel and context-parallel ranks together",
        ),
    )
