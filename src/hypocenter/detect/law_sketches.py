"""Sketches of gradients over ranks: as each rank's micro-batches give them when done again, and as they are used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hypocenter.detect.law_rows import LABELS, MADE, PART, SKETCH, TOGETHER, USED
from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_columns import codes

if TYPE_CHECKING:
    import pyarrow as pa

TOLERANCE = 0.01  # of a weight, and of what the weights do not explain
N_ITERATIONS = 20
N_RANKS_AT_MOST = 256  # whose weights are told apart

_Vector = NDArray[np.float64]


@dataclass(slots=True)
class LawSketches:
    """One parameter at one audited step: sketches by rank."""

    made: dict[int, _Vector] = field(default_factory=dict)
    used: dict[int, _Vector] = field(default_factory=dict)
    parts: dict[int, dict[int, _Vector]] = field(default_factory=dict)  # of `made`, by micro-batch, where known
    prints: dict[int, float] = field(default_factory=dict)
    is_together: bool = False  # the model computes over ranks
    hook: str = ""  # function of the program that reduces it in DDP's place
    group: int = 0  # of the optimizers that holds it


def law_sketches(panel: Panel) -> Mapping[str, LawSketches]:
    """By parameter. Several rules ask for them, and none may change them."""
    known = panel.asked.get(LawSketches)
    if known is None:
        known = panel.asked[LawSketches] = _law_sketches(panel)
    return known


def _law_sketches(panel: Panel) -> dict[str, LawSketches]:
    found: dict[str, LawSketches] = {}
    for port in (MADE, PART, USED):
        table = panel.where(port=port)
        if not table.num_rows:
            continue
        site, names = codes(table, "site")
        by_site = np.argsort(site, kind="stable").tolist()
        ends = np.cumsum(np.bincount(site)).tolist()
        ranks, printed = (table[name].to_pylist() for name in ("rank", "sum"))
        numbers = table["microbatch"].to_pylist() if port == PART else []
        vectors = _sketches(table["sketch"])
        for name, start, end in zip(names, [0, *ends[:-1]], ends, strict=True):
            if name == LABELS:
                continue
            each = found.setdefault(name, LawSketches())
            rows = [at for at in by_site[start:end] if vectors[at] is not None]
            if port == PART:
                for at in rows:
                    each.parts.setdefault(numbers[at], {})[ranks[at]] = vectors[at]
                continue
            (each.made if port == MADE else each.used).update({ranks[at]: vectors[at] for at in rows})
            if port == MADE:
                each.prints.update({ranks[at]: printed[at] for at in rows})
        (op, hooks), (how, hows) = codes(table, "op"), codes(table, "module")
        group = table["call"].to_numpy()
        is_told = np.array([hook != "" for hook in hooks])[op] | np.array([word == TOGETHER for word in hows])[how]
        is_told |= group != 0
        for at in np.flatnonzero(is_told).tolist():
            if (each := found.get(names[site[at]])) is not None:
                each.hook = hooks[op[at]] or each.hook
                each.is_together |= hows[how[at]] == TOGETHER
                each.group = int(group[at])
    return found


def _sketches(column: pa.ChunkedArray) -> list[_Vector | None]:
    """Those of rows that have a whole one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    is_whole = lengths == SKETCH
    numbers = column.filter(pa.array(is_whole)).combine_chunks().flatten().to_numpy(zero_copy_only=False)
    found: list[_Vector | None] = [None] * len(is_whole)
    vectors = numbers.astype(np.float64).reshape(-1, SKETCH)
    for at, vector in zip(np.flatnonzero(is_whole).tolist(), vectors, strict=True):
        found[at] = vector
    return found


def is_replica(parameter: LawSketches, ranks: Sequence[int]) -> bool:
    """Whether all ranks hold the same values of it."""
    return parameter.made.keys() == set(ranks) and len(set(parameter.prints.values())) == 1


def weights_of_ranks(looked: Mapping[str, LawSketches], ranks: Sequence[int]) -> list[float] | None:
    """The weight of each rank in what is used, from most of the parameters; none where that is not made of them.

    None where it cannot be told.
    """
    if len(ranks) > N_RANKS_AT_MOST:
        return None
    pairs = [
        (made / scale, np.frombuffer(used) / scale, scale / size, n_ranks)
        for each in looked.values()
        for made in (np.stack([each.made[rank] for rank in ranks], axis=1),)
        # replicas use the same: once for all, or hundreds of ranks are hundreds of times the same equations
        for used, n_ranks in Counter(used.tobytes() for used in each.used.values()).items()
        # by what was made: were it by what is used, the smaller of two factors would count for more
        if (size := float(np.linalg.norm(np.frombuffer(used)))) and (scale := float(np.linalg.norm(made)))
    ]  # fmt: skip
    if not pairs or SKETCH * len(pairs) <= 2 * len(ranks):
        return None
    matrices, targets, by_used, n_alike = (np.stack(column) for column in zip(*pairs, strict=True))
    trust, rests = n_alike.astype(np.float64), np.ones(len(pairs))
    solved = np.zeros(len(ranks))
    for _ in range(N_ITERATIONS):  # of least squares, in which what does not fit counts less: few outliers do not pull
        by = np.sqrt(trust)
        left, right = (matrices * by[:, None, None]).reshape(-1, len(ranks)), (targets * by[:, None]).reshape(-1)
        solved, _, rank, _ = np.linalg.lstsq(left, right)
        if rank < len(ranks):
            return None  # two ranks gave the same: their weights cannot be told apart
        rests = np.linalg.norm(matrices @ solved - targets, axis=1)
        trust = n_alike / np.maximum(rests, TOLERANCE / 100)
    fits = rests * by_used <= TOLERANCE
    is_made = 2 * n_alike[fits].sum() > n_alike.sum()
    if is_made and not fits.all():  # where ranks gave nearly the same, a few that do not fit pull all the same
        of_fits, _, rank, _ = np.linalg.lstsq(matrices[fits].reshape(-1, len(ranks)), targets[fits].reshape(-1))
        solved = of_fits if rank == len(ranks) else solved
    return [float(w) for w in solved] if is_made else []


def weights_of_microbatches(looked: Mapping[str, LawSketches]) -> list[float]:
    """The weight of each micro-batch of a step, added up over ranks, in what is used; none where that is not made so.

    One equation for each number of a sketch; each parameter weighs the same, whatever its size.
    """
    n = max((number for each in looked.values() for number in each.parts), default=-1) + 1
    pairs: list[tuple[_Vector, _Vector]] = []
    for each in looked.values():
        nothing = np.zeros(SKETCH)
        made = np.stack([sum(each.parts.get(number, {}).values(), nothing) for number in range(n)] or [nothing], axis=1)
        different = {used.tobytes(): used for used in each.used.values()}.values()  # replicas use the same
        pairs += [(made / size, used / size) for used in different if (size := float(np.linalg.norm(used)))]
    if n < 2 or SKETCH * len(pairs) <= 2 * n:
        return []
    matrices, targets = (np.stack(column) for column in zip(*pairs, strict=True))
    solved, _, rank, _ = np.linalg.lstsq(matrices.reshape(-1, n), targets.reshape(-1))
    rests = np.linalg.norm(matrices @ solved - targets, axis=1)
    return [float(w) for w in solved] if rank == n and (rests <= TOLERANCE).all() else []
