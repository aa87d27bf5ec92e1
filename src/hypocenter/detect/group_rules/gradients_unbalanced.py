"""What the optimizers of a job use is not the sum of what its ranks' micro-batches give.

What it means
    One rank's gradients are left out, or count more often than those of the others; or one parameter is left out of the
    reduction, is reduced twice, or over the wrong group. Replicas may stay equal all the same: no comparison of ranks
    with each other shows it.

How it is decided
    At steps of `--audit` the micro-batches are done again, on each rank by itself or, where the model computes over
    several ranks, on all of them together. Each rank writes a sketch of the gradients that its own give, and of those
    that its optimizer is about to use. Sketches are linear, so one of two equalities can be seen to hold: what is used
    is the sum over the ranks, each with the same weight (replicas); or it is each rank's own, with one factor for all
    parameters of a rank (parts of a layer, shards that the replay itself reduces). Which of them, the job shows: it
    counts where it was so at two audited steps before, or where one rank has no weight at all at four. Gradients that
    hold those of the step before, all of them and with the same weight, count from the first step on, when seen twice.
    So do, at two, sums in which the micro-batches of a step have weights of their own, the same each time, and a
    replicated parameter that the optimizer of no rank holds, where the others are shared out among them. So do, at two,
    gradients to which another rank has added that of another parameter, as it had none for this one,
    where both ranks hold both. So does, at three, a parameter that began with the same values on all ranks and is each
    rank's own while others are sums, where the model computes on each rank alone and no wrapper tells what is reduced;
    and so do, at three, sums that were divided by the number of ranks for some parameters and not for others.

What to do
    Look at what runs between backward and the update: the all-reduce, its group and divisor, `no_sync`, `zero_grad`,
    conditions that hold on some ranks only.

When it is wrong
    A job that from some step on weighs one rank otherwise on purpose: by tokens whose number differs only from then on.
    Sums are a note where the parameters that are not divided have groups of the optimizer to themselves: embeddings,
    with a rate of their own. Where the program gave DDP a communication hook it is a note: PowerSGD and others of its
    kind leave a part out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.law_rows import SKETCH
from hypocenter.detect.law_sketches import (
    N_RANKS_AT_MOST,
    TOLERANCE,
    LawSketches,
    is_replica,
    law_sketches,
    weights_of_microbatches,
    weights_of_ranks,
)
from hypocenter.detect.own_laws import common_factors
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding, Remedy, replace

CODE = "HC308"
STAYS, LEFT_FOR, LEFT_OUT_FOR = 2, 3, 4  # audited steps
STRANGE = 0.1  # of a gradient: what another one must be, to be told
MANY = 2  # parameters off by the number of ranks: the factor of one may be meant

_ALL = "all"  # told of most parameters, not of one

_Vector = NDArray[np.float64]


@dataclass(slots=True)
class _Habits:
    """What was found at the audited steps before."""

    n_looked: int = 0
    replicas: frozenset[str] = frozenset()  # began with the same values on all ranks
    n_sums: int = 0  # steps in a row in which most of what was used was the sum of all ranks
    are_sums: bool = False  # it was so at STAYS of them
    n_equal: int = 0  # of these, in a row, in which all ranks had the same weight
    n_left_out: dict[int, int] = field(default_factory=dict)  # by rank: steps in a row without any weight
    n_balanced: dict[str, int] = field(default_factory=dict)  # by parameter: steps in a row
    n_own: dict[tuple[str, int], int] = field(default_factory=dict)  # by parameter and rank: steps in a row
    n_owners: dict[int, int] = field(default_factory=dict)  # by rank: steps in a row, most of its parameters
    factors: dict[int, tuple[int, float]] = field(default_factory=dict)  # by rank, -1 of the sum: how often, largest
    last: dict[tuple[str, int], _Vector] = field(default_factory=dict)  # what was used at the step before
    last_step: int = -1
    may_be_left_out: bool = False  # nothing but a hand-written loop says which gradients are reduced
    usual: float = 0.0  # weight of a rank in the sum, at the last step
    is_alone: bool = False  # the model computes on each rank by itself
    unlike: dict[str, list[int]] = field(
        default_factory=dict
    )  # by parameter: steps in a row at which it is as many times the sum as there are ranks, or that part of it
    left: dict[str, list[int]] = field(
        default_factory=dict
    )  # by parameter: steps in a row at which it is each rank's own
    piled: dict[int, list[int]] = field(default_factory=dict)  # by rank, -1 of the sum: steps that hold the one before
    made_on: dict[str, set[int]] = field(default_factory=dict)  # by parameter: ranks whose micro-batches gave one
    strangers: dict[str, list[tuple[int, int, str, int]]] = field(
        default_factory=dict
    )  # by parameter: step, rank, and the other parameter and rank whose gradient was added to its own
    shares: list[tuple[int, _Vector]] = field(default_factory=list)  # step, weights of its micro-batches by the last
    nobodys: dict[str, list[int]] = field(default_factory=dict)  # by parameter: steps at which no rank has updated it
    is_told: set[str] = field(default_factory=set)


@group_rule(CODE, "desync", severity="warning", reads=("law",), asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Report gradients that are not what the micro-batches add up to: once for ranks, once for each parameter."""
    parameters = law_sketches(panel)
    ranks = list(panel.ranks)
    if len(ranks) < 2 or {rank for each in parameters.values() for rank in each.made} != set(ranks):
        return  # no audit, or some ranks had no time for this step
    habits: _Habits = panel.history.notes[CODE].setdefault("habits", _Habits())
    if not habits.n_looked:
        habits.replicas = frozenset(name for name, each in parameters.items() if is_replica(each, ranks))
    if not habits.n_looked:
        habits.is_alone = not any(each.is_together for each in parameters.values())
        habits.may_be_left_out = habits.is_alone and not any(place.groups for place in panel.places.values())
    habits.n_looked += 1
    hooks = sorted({each.hook for each in parameters.values()} - {""})
    yield from _noted(_judged(panel.step, habits, parameters, ranks), hooks)
    yield from _unlike(habits, ranks, parameters)
    yield from _noted(_mispaired(panel.step, habits, parameters, len(ranks)), hooks)
    habits.last = {(name, rank): used for name, each in parameters.items() for rank, used in each.used.items()}
    habits.last_step = panel.step


def _judged(
    step: int, habits: _Habits, parameters: Mapping[str, LawSketches], ranks: Sequence[int]
) -> Iterator[Finding]:
    """Judge by both laws. Parameters whose gradients are sums over ranks are not judged as each rank's own."""
    nothing = {rank: np.zeros(SKETCH) for rank in ranks}  # on some ranks it took no part in this step
    looked = {
        name: replace(each, made=nothing | each.made)
        for name, each in parameters.items()
        if name in habits.replicas and each.used
    }
    yield from _nobodys(step, habits, parameters, ranks)
    if looked and len(ranks) <= N_RANKS_AT_MOST:
        yield from _sums(step, habits, looked, ranks)
    habits.are_sums = habits.are_sums or habits.n_sums >= STAYS
    yield from _own(step, habits, {n: p for n, p in parameters.items() if not habits.are_sums or n not in looked})


def _noted(findings: Iterator[Finding], hooks: Sequence[str]) -> Iterator[Finding]:
    """Turn findings into notes where functions of the program reduce gradients: they may change them on purpose."""
    for finding in findings:
        if hooks:
            why = f"DDP reduces by the communication hook {', '.join(hooks)}, which may do it on purpose"
            finding = replace(finding, severity="note", why=(*finding.why, why))
        yield finding


def _sums(step: int, habits: _Habits, looked: Mapping[str, LawSketches], ranks: Sequence[int]) -> Iterator[Finding]:
    """Judge replicas: the gradient that is used must be the sum over ranks."""
    weights = weights_of_ranks(looked, ranks)
    if weights is None:
        return  # two ranks gave the same
    usual = statistics.median(weights) if weights else 0.0
    if usual <= 0:
        yield from _microbatches(step, habits, looked, len(ranks))
        sums = _Pairs.of_sum(looked)
        yield from _none(step, habits, -1, lambda: sums.are_of_before(step, habits)[0], is_habit=habits.n_sums >= STAYS)
        habits.n_sums = 0
        return
    habits.n_sums, habits.usual = habits.n_sums + 1, usual
    off = {rank: w / usual for rank, w in zip(ranks, weights, strict=True) if abs(w / usual - 1) > TOLERANCE}
    yield from _ranks(step, habits, off)
    if not off:
        yield from _single_ones(step, habits, looked, ranks, usual)
        yield from _factor(step, habits, -1, usual * len(ranks))


def _microbatches(step: int, habits: _Habits, looked: Mapping[str, LawSketches], n_ranks: int) -> Iterator[Finding]:
    """Report micro-batches of a step that have other weights than each other in the sum over ranks."""
    weights = weights_of_microbatches(looked)
    if habits.is_told or not weights or not weights[-1]:
        return
    shares = np.array(weights) / weights[-1]
    alike = [at for at, other in habits.shares if other.shape == shares.shape and _is_near(other, shares)]
    habits.shares.append((step, shares))
    if len(alike) + 1 < STAYS or _is_near(shares, np.ones(len(shares))):
        return
    habits.is_told.add(_ALL)
    why = ["done again, the micro-batches of all ranks add up to what is used only with these weights",
           f"so it is at steps {alike[0]} and {step}"]  # fmt: skip
    if _is_near(shares[:-1], n_ranks * shares[1:]):
        why.append(f"each counts {n_ranks} times the next, as many as there are ranks: what had been added up over "
                   "ranks is added up again after the next micro-batch")  # fmt: skip
    title = f"micro-batches of a step count {' : '.join(f'{share:.3g}' for share in shares)} in the gradients"
    yield _finding(alike[0], 0, "", title, float(shares[0]), why)


def _nobodys(
    step: int, habits: _Habits, parameters: Mapping[str, LawSketches], ranks: Sequence[int]
) -> Iterator[Finding]:
    """Report replicas that no rank updates, where other ones are shared out among the ranks' optimizers."""
    given = {
        name: each for name, each in parameters.items() if name in habits.replicas and len(each.made) == len(ranks)
    }
    n_shared = sum(0 < len(each.used) < len(ranks) for each in given.values())
    found = [name for name, each in given.items() if not each.used and any(v.any() for v in each.made.values())]
    for name in found if n_shared else ():
        steps = habits.nobodys.setdefault(name, [])
        steps.append(step)
        if len(steps) < STAYS or name in habits.is_told:
            continue
        habits.is_told.update(found)
        others = f" and {len(found) - 1} more" if len(found) > 1 else ""
        finding = _finding(
            steps[0], 0, name, f"{name}{others}: in the optimizer of no rank", 0.0,
            [f"{n_shared} parameters are shared out among the ranks' optimizers; this one gets a gradient on all ranks "
             "and no rank updates it"],
        )  # fmt: skip
        # a rest that a division leaves out has fewer than there are ranks; more of them may be meant
        yield finding if len(found) < len(ranks) else replace(finding, severity="note")


def _own(step: int, habits: _Habits, parameters: Mapping[str, LawSketches]) -> Iterator[Finding]:
    """Judge parts of the model: the gradient used on a rank must be what its own replay gives."""
    pairs = _Pairs.of_each_rank(parameters)
    factors, is_near = pairs.common_factors()
    of_before = cache(lambda: pairs.are_of_before(step, habits))
    for at, (rank, factor) in enumerate(zip(pairs.owners, factors, strict=True)):
        n_before = habits.n_owners.get(rank, 0)
        habits.n_owners[rank] = 0 if factor is None else n_before + 1
        if factor is None:
            yield from _none(step, habits, rank, lambda at=at: of_before()[at], is_habit=n_before >= STAYS)
            continue
        for row in range(pairs.starts[at], pairs.starts[at + 1]):
            name = pairs.keys[row][0]
            n_before = habits.n_own.get((name, rank), 0)
            habits.n_own[name, rank] = n_before + 1 if is_near[row] else 0
            if is_near[row] or n_before < STAYS or name in habits.is_told:
                continue
            habits.is_told.add(name)
            made = pairs.made[row]
            share, how = _how(rank, pairs.used[row], {rank: made}, factor * made)
            yield _finding(step, rank, name, f"the gradient of {name} on rank {rank} {how}", share, _before(n_before))
        yield from _factor(step, habits, rank, factor)


def _factor(step: int, habits: _Habits, rank: int, factor: float) -> Iterator[Finding]:
    """Report gradients that are a larger multiple of what the micro-batches give than before; less may be a clip."""
    n, most = habits.factors.get(rank, (0, 0.0))
    habits.factors[rank] = n + 1, max(most, factor)
    if n < STAYS or factor <= max(1.0, most) * (1 + TOLERANCE) or _ALL in habits.is_told:
        return
    habits.is_told.add(_ALL)
    title = f"all gradients are {factor / most:.3g} times what the ranks' micro-batches give"
    yield _finding(step, max(rank, 0), "", title, factor / most, [f"at {n} audited steps before they were not"])


def _none(
    step: int, habits: _Habits, rank: int, are_of_before: Callable[[], bool], *, is_habit: bool
) -> Iterator[Finding]:
    """Report that most parameters break the law, unless a finding before explains it.

    Args:
        step: audited.
        habits: of the steps before.
        rank: whose own gradients these are; -1 of a sum over ranks.
        are_of_before: whether they hold those of the step before.
        is_habit: whether the law was kept at the steps before.
    """
    if habits.is_told:
        return
    piled = habits.piled.setdefault(rank, [])
    is_of_before = are_of_before()
    if is_of_before:
        piled.append(step)
    if not is_habit and not (is_of_before and len(piled) >= STAYS):
        return
    habits.is_told.add(_ALL)
    how = "still hold those of the step before" if is_of_before else "are not what the ranks' micro-batches give"
    why = f"at {STAYS} audited steps or more before this one the two were equal"
    if not is_habit:
        step, why = piled[0], f"so it is at steps {piled[0]} and {piled[1]}, and they were at no step without"
    yield _finding(step, max(rank, 0), "", f"the gradients of most parameters {how}", 0.0, [why])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Pairs of what is used and what the replay gives, a row for each: many ranks are compared at once."""

    owners: tuple[int, ...]  # ranks; -1 of a sum over ranks
    starts: tuple[int, ...]  # of each owner's rows, and where the last ones end
    keys: tuple[tuple[str, int], ...]  # parameter and rank of each row
    used: _Vector
    made: _Vector

    @classmethod
    def of_each_rank(cls, parameters: Mapping[str, LawSketches]) -> _Pairs:
        """Each rank's own, in rising order of ranks; not those of which the replay gives nothing."""
        both = [(name, rank) for name, each in parameters.items() for rank in each.used if rank in each.made]
        in_order = np.argsort([rank for _, rank in both], kind="stable")
        used, made = _rows([parameters[n].used[r] for n, r in both]), _rows([parameters[n].made[r] for n, r in both])
        some = in_order[np.isin(in_order, np.flatnonzero(made.any(axis=1)))]
        keys = tuple(both[row] for row in some.tolist())
        ranks = [rank for _, rank in keys]
        starts = [row for row, rank in enumerate(ranks) if not row or rank != ranks[row - 1]]
        return cls(
            owners=tuple(ranks[row] for row in starts), starts=(*starts, len(keys)), keys=keys, used=used[some],
            made=made[some],
        )  # fmt: skip

    @classmethod
    def of_sum(cls, looked: Mapping[str, LawSketches]) -> _Pairs:
        """Pair what each rank uses with the mean over ranks."""
        keys = tuple((name, rank) for name, each in looked.items() for rank in each.used)
        means = {name: np.mean(list(each.made.values()), axis=0) for name, each in looked.items()}
        used, made = _rows([looked[n].used[r] for n, r in keys]), _rows([means[n] for n, _ in keys])
        return cls(owners=(-1,), starts=(0, len(keys)), keys=keys, used=used, made=made)

    def are_of_before(self, step: int, habits: _Habits) -> list[bool]:
        """Return by owner whether what is used is a multiple of that of the step before plus what this one gives."""
        found = [False] * len(self.owners)
        if habits.last_step != step - 1:
            return found
        nothing = np.zeros(SKETCH)
        before = _rows([habits.last.get(key, nothing) for key in self.keys])
        both = before + self.made
        some = np.flatnonzero(before.any(axis=1) & both.any(axis=1))
        starts = np.searchsorted(some, self.starts)
        owned = np.flatnonzero(np.diff(starts))
        rest = replace(
            self, owners=tuple(self.owners[at] for at in owned), starts=(*starts[owned].tolist(), len(some)),
            keys=tuple(self.keys[row] for row in some.tolist()), used=self.used[some], made=both[some],
        )  # fmt: skip
        for at, factor in zip(owned.tolist(), rest.common_factors()[0], strict=True):
            found[at] = factor is not None
        return found

    def common_factors(self) -> tuple[list[float | None], NDArray[np.bool_]]:
        """Return by owner the factor of most of its rows, None where there is none; and which rows have it."""
        factors, is_near = common_factors(self.used, self.made, np.array(self.starts, np.int64))
        return [None if math.isnan(factor) else factor for factor in factors.tolist()], is_near


def _rows(vectors: Sequence[_Vector]) -> _Vector:
    buffers: Sequence[Any] = vectors
    return np.frombuffer(b"".join(buffers)).reshape(-1, SKETCH)  # of many, quicker than concatenate


def _is_near(a: _Vector, b: _Vector) -> bool:
    return bool(np.linalg.norm(a - b) <= TOLERANCE * np.linalg.norm(b))


def _before(n: int) -> list[str]:
    return [f"at {n} audited steps before it was, and other parameters are now"]


def _ranks(step: int, habits: _Habits, off: Mapping[int, float]) -> Iterator[Finding]:
    """Report ranks whose gradients have another weight than those of most."""
    n_before = habits.n_equal
    habits.n_equal = 0 if off else n_before + 1
    for rank, share in off.items():
        is_left_out = abs(share) <= TOLERANCE
        habits.n_left_out[rank] = habits.n_left_out.get(rank, 0) + 1 if is_left_out else 0
        name = f"rank {rank}"
        if name in habits.is_told or not (n_before >= STAYS or habits.n_left_out[rank] >= LEFT_OUT_FOR):
            continue
        habits.is_told.add(name)
        how = "are in no update" if is_left_out else f"count {share:.3g} times as much as those of the other ranks"
        why = [f"at {n_before} audited steps before all ranks had the same weight"] if n_before else []
        yield _finding(
            step, rank, "", f"the gradients of rank {rank} {how}", 0.0 if is_left_out else share,
            ["done again, the micro-batches of all ranks add up to what is used only with these weights", *why],
        )  # fmt: skip
    for rank in habits.n_left_out.keys() - off.keys():
        habits.n_left_out[rank] = 0


def _single_ones(
    step: int, habits: _Habits, looked: Mapping[str, LawSketches], ranks: Sequence[int], usual: float
) -> Iterator[Finding]:
    """Report parameters whose gradient is something else than the sum that the others are."""
    for name, each in looked.items():
        total = usual * np.sum([each.made[rank] for rank in ranks], axis=0)
        size = float(np.linalg.norm(total))
        bad = {rank: used for rank, used in each.used.items() if np.linalg.norm(used - total) > TOLERANCE * size}
        n_before = habits.n_balanced.get(name, 0)
        habits.n_balanced[name] = 0 if bad else n_before + 1
        if not bad or name in habits.is_told:
            continue
        is_left = habits.may_be_left_out and all(_is_own(used, each.made.get(at)) for at, used in bad.items())
        habits.left[name] = [*habits.left.get(name, ()), step] if is_left and len(bad) == len(ranks) else []
        is_unlike = habits.is_alone and not is_left and _is_by_ranks(bad.values(), total, len(ranks))
        habits.unlike[name] = [*habits.unlike.get(name, ()), step] if is_unlike and len(bad) == len(ranks) else []
        if n_before < STAYS:
            if len(habits.left[name]) >= LEFT_FOR:
                yield _left_out(habits, name)
            continue
        habits.is_told.add(name)
        rank, used = min(bad.items())
        share, how = _how(rank, used, each.made, total)
        yield _finding(step, rank, name, f"the gradient of {name} {how}", share, _before(n_before))


def _unlike(habits: _Habits, ranks: Sequence[int], parameters: Mapping[str, LawSketches]) -> Iterator[Finding]:
    """Report sums that were divided by the number of ranks for some parameters and not for others."""
    names = [name for name, steps in habits.unlike.items() if len(steps) >= LEFT_FOR and name not in habits.is_told]
    if len(names) < MANY:
        return
    habits.is_told.update(names)
    name, each = names[0], parameters[names[0]]
    total = np.sum([each.made[rank] for rank in ranks if rank in each.made], axis=0)
    factor = float(next(iter(each.used.values())) @ total / (total @ total))
    others = len(habits.replicas) - len(names)
    title = f"the gradients of {len(names)} parameters are off by the number of ranks, beside those of {others} others"
    why = (
        f"that of {name} is {factor:.3g} times the sum of what the {len(ranks)} ranks' micro-batches give, that of "
        f"others {factor * (len(ranks) if factor < habits.usual else 1 / len(ranks)):.3g} times",
        f"so it is at steps {', '.join(map(str, habits.unlike[name][:LEFT_FOR]))}, for {', '.join(names[:4])}"
        f"{' ...' if len(names) > 4 else ''}",
    )
    finding = _finding(habits.unlike[name][0], 0, name, title, factor, why)
    of_others = {each.group for other, each in parameters.items() if other in habits.replicas and other not in names}
    if of_others.isdisjoint(parameters[name].group for name in names if name in parameters):
        apart = "the optimizer holds them in groups of their own: their rate may make up for it"
        finding = replace(finding, severity="note", why=(*why, apart))
    yield finding


def _mispaired(step: int, habits: _Habits, parameters: Mapping[str, LawSketches], n_ranks: int) -> Iterator[Finding]:
    """Report a gradient to which that of another parameter was added, of a rank that gave none for this one.

    Ranks that use parts of a model each, and reduce only what they have, send one part's for another's. Both ranks hold
    both: of tied weights of two stages of a pipeline, which are added up on purpose, each gives one at any step.
    """
    for name, each in parameters.items():
        habits.made_on.setdefault(name, set()).update(each.made)
    parts = {name: each for name, each in parameters.items() if 0 < len(each.made) < n_ranks}
    keys = [(name, rank) for name, each in parts.items() for rank in each.made]
    if habits.n_sums and len(parts) > 1:
        made = habits.usual * np.stack([parts[name].made[rank] for name, rank in keys])
        for (name, rank), own in zip(keys, made, strict=True):
            used = parts[name].used.get(rank)
            if used is None or np.linalg.norm(used - own) <= STRANGE * np.linalg.norm(used):
                continue
            are_near = np.linalg.norm(used - own - made, axis=1) <= TOLERANCE * np.linalg.norm(made, axis=1)
            near = [keys[at] for at in np.flatnonzero(are_near)]
            found = [(n, at) for n, at in near if at not in parts[name].made and rank not in parts[n].made]
            if len(found) == 1 == len(near):
                habits.strangers.setdefault(name, []).append((step, rank, *found[0]))
    seen = {
        name: [each for each in seen if habits.made_on[name] >= {each[1], each[3]} <= habits.made_on[each[2]]]
        for name, seen in habits.strangers.items() if name not in habits.is_told
    }  # fmt: skip
    names = [name for name, some in seen.items() if len({at for at, *_ in some}) >= STAYS]
    if names:
        habits.is_told.update(names)
        first, rank, other, at = seen[names[0]][0]
        why = [
            f"what rank {rank} uses is the sum of its own gradient of {names[0]} and that of {other} of rank {at}, "
            f"which has none of {names[0]} in this step",
            f"so it is at steps {first} and {seen[names[0]][-1][0]}, for {', '.join(names[:4])}"
            f"{' ...' if len(names) > 4 else ''}: ranks with other parts reduce what they have, one after the other",
        ]
        title = f"the gradient of {names[0]} is added to that of {other}"
        remedy = Remedy(
            action="fill-with-zeros", text="reduce the gradient of every parameter on every rank, 0 for none"
        )
        yield replace(_finding(first, rank, names[0], title, 0.0, why), actual=None, limit=None, remedy=remedy)


def _is_by_ranks(used: Iterable[_Vector], total: _Vector, n_ranks: int) -> bool:
    """Return whether each is the sum times the number of ranks, or divided by it."""
    size = float(total @ total)
    return size > 0.0 and all(any(_is_near(each, factor * total) for factor in (n_ranks, 1 / n_ranks)) for each in used)


def _is_own(used: _Vector, made: _Vector | None) -> bool:
    factor = float(used @ made / (made @ made)) if made is not None and made @ made else 0.0
    return made is not None and factor > 0.0 and _is_near(used, factor * made)


def _left_out(habits: _Habits, name: str) -> Finding:
    """Report a parameter that never was in the reduction; others like it are told with it."""
    names = [other for other, steps in habits.left.items() if len(steps) >= LEFT_FOR - 1]
    habits.is_told.update(names)
    others = [other for other in names if other != name]
    why = ["most gradients are sums; it began with the same values on all ranks, each of which computes alone"]
    if others:
        why.append(f"the same for {len(others)} more: {', '.join(others[:3])}{' ...' if len(others) > 3 else ''}")
    title = f"the gradient of {name} is never added to those of the other ranks"
    return _finding(habits.left[name][0], 0, name, title, 0.0, why)


def _how(rank: int, used: _Vector, made: Mapping[int, _Vector], total: _Vector) -> tuple[float, str]:
    """Return the factor, and what is wrong in words."""
    if not np.linalg.norm(used):
        return 0.0, "is not used, though the ranks' micro-batches give one"
    share = float(used @ total / (total @ total))
    if np.linalg.norm(used - share * total) <= TOLERANCE * np.linalg.norm(used):
        return share, f"is {share:.3g} times what the ranks' micro-batches give"
    own = made.get(rank, total)
    of_own = float(used @ own / (own @ own)) if own @ own else 0.0
    if np.linalg.norm(used - of_own * own) <= TOLERANCE * np.linalg.norm(used):
        return of_own, f"is rank {rank}'s own: it is not added to those of the other ranks"
    return share, "is not what the ranks' micro-batches give"


def _finding(step: int, rank: int, name: str, title: str, share: float, why: Sequence[str]) -> Finding:
    return Finding(
        code=CODE, kind="desync", severity="warning", title=title, step=step, rank=rank, phase="grad", site=name,
        port="grad", param=name or None, cause="program-error", limit=1.0, actual=share, why=tuple(why),
        then=("the update follows another gradient than that of the whole batch",), confidence="proven",
    )  # fmt: skip
