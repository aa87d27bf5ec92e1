"""What the replicas of a job did, occasion by occasion: gathered from its panels, judged when the last has come."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hypocenter.axes import HOLD_COPIES
from hypocenter.detect.local_rows import LOCAL
from hypocenter.detect.panel import Panel
from hypocenter.detect.replica_columns import Compared, Member, codes, compare, expected_equal
from hypocenter.detect.replica_facts import ReplicaFacts, facts
from hypocenter.detect.replica_rows import (
    AFTER,
    BATCH_LOSS,
    BATCH_PORT,
    BATCH_PREFIX,
    CLIP,
    GRAD,
    PARAM,
    RNG_PORT,
    RNG_PREFIX,
)

if TYPE_CHECKING:
    import pyarrow as pa

What = Literal["param", "grad", "state"]
DETAILS = 64  # values of one occasion that are looked at one by one
NORM = re.compile(r"(Layer|RMS)_?Norm$", re.IGNORECASE)  # names of classes
SAME_LOSS = 1e-6  # relative
SPREAD = 0.01  # relative, of clip coefficients over ranks: far above the rounding of a norm
ROUNDED = 2.0**-8  # relative: what rounding of bfloat16, the coarsest format of gradients, may do to one
_PLACE_IN_STEP: dict[tuple[What, bool], int] = {("param", False): 0, ("grad", False): 1, ("state", True): 2}
Kind = Literal["rounding", "factor", "element", "other"]
ROUNDING = {"float32": 1e-5, "float64": 1e-10, "float16": 4e-3, "bfloat16": 3e-2}
"""Relative differences that another order of adding up may make: a hundred ulp in float32, four in half precision."""
PARALLEL = 2e-3  # relative residual of a sketch after the best factor is taken out; float32 sketches are good to 1e-5
ONE_ELEMENT = 0.02  # relative spread of a difference's sketch whose entries are all ± the change of one element
FEW = 8  # elements; sketches of so few are parallel, or of one element, by chance


@dataclass(frozen=True, slots=True, kw_only=True)
class Occasion:
    """One comparison of all replicas along an axis."""

    step: int
    what: What
    is_after: bool  # after the update of the step
    n: int  # parameters compared
    n_differ: int  # of these, differ in some group
    differences: tuple[Difference, ...] = ()  # the first DETAILS of them
    is_local: bool = False  # grad: each rank's is its own gradient before the reduction, bit for bit

    @property
    def when(self) -> tuple[int, int]:
        """The order of occasions: parameters before the update, gradients, and what is there after it."""
        return self.step, _PLACE_IN_STEP.get((self.what, self.is_after), 3)

    @property
    def real(self) -> tuple[Difference, ...]:
        """The differences beyond rounding."""
        return tuple(d for d in self.differences if d.kind != "rounding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A number that is not the same on the ranks of a group."""

    step: int
    ranks: tuple[int, ...]
    values: dict[int, float]
    began: int  # first of the steps, looked at in a row, at which it differed by more than rounding
    since: int | None  # the step looked at before that; None: there was none


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first occasion of a job in which no wrapper tells the groups: what was the same on all ranks."""

    step: int
    gradients: Occasion | None
    is_alike: bool  # losses
    draws_alike: bool  # random states of the CPU before the first forward
    has_same_data: bool
    reduced: frozenset[str]  # parameters whose gradients the program adds up by hand


@dataclass(slots=True)
class ReplicaTrack:
    """What is known so far of the replicas, by axis."""

    facts: ReplicaFacts
    last_fed: int | None = None
    occasions: dict[str, list[Occasion]] = field(default_factory=dict[str, list[Occasion]])
    typed: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    by_content: set[str] = field(default_factory=set[str])  # axes of which `typed` are random numbers, the same on all
    # ranks, while other matrices differ
    began: dict[str, int] | None = None  # where no wrapper tells the groups: digests that all ranks began with
    shared: set[str] = field(default_factory=set[str])  # there: parameters with the same gradient on all ranks so far
    apart: list[Occasion] | None = None  # there: what differed at the first comparison
    varied: frozenset[str] = frozenset()  # there: parameters that began as more than a constant
    parted: list[tuple[int, str, str]] = field(default_factory=list[tuple[int, str, str]])  # there: step at which one
    # that began equal is so no longer, its name, and that of a parameter of the same module that is a replica
    late: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])  # there: parameters that were
    # equal on all ranks when they were first recorded, later than others; the step, and their digest
    late_apart: dict[str, list[int]] = field(
        default_factory=dict[str, list[int]]
    )  # there: of these, the steps at which
    # they are not equal, though all ranks use one gradient
    mixed: dict[str, list[int]] | None = None  # there: parameters that began with other values on each rank, and the
    # steps at which the gradients that the ranks had made of them were added up all the same
    start: Start | None = None  # there
    left: frozenset[str] = frozenset()  # there: of those that began equal, and as more than a constant, which parted at
    # their first move
    norms: tuple[str, ...] = ()  # there: of all norms, as wide as copies are, where they parted at their first move
    is_apart: bool = False  # there: what shares its gradient began with other values
    clips: dict[str, list[Spread]] = field(default_factory=dict[str, list[Spread]])
    clipped: dict[tuple[int, ...], tuple[int | None, int | None]] = field(
        default_factory=dict[tuple[int, ...], tuple[int | None, int | None]]
    )  # by group: `began` of a Spread, None while they are alike, and the last step at which they were
    ruined_from: int | None = None  # first step whose gradients were not finite and that was not skipped

    @property
    def are_learned(self) -> bool:
        """Whether there are replicas, though no wrapper tells the groups."""
        return self.began is not None and bool(self.typed.get("dp"))

    def of(self, axis: str, what: What) -> list[Occasion]:
        """Return the occasions of one kind in order, up to where values were not finite: NaN has many bit patterns."""
        end = (math.inf, 0) if self.ruined_from is None else (self.ruined_from, _PLACE_IN_STEP["grad", False])
        known = (o for o in self.occasions.get(axis, ()) if o.what == what and o.when < end)
        return sorted(known, key=lambda o: o.when)


def is_last(panel: Panel) -> bool:
    """Return whether this is the last step that any rank completed, at which findings on the whole run are reported."""
    return bool(panel.last_steps) and panel.step == max(panel.last_steps.values())


def track(panel: Panel) -> ReplicaTrack:
    """Return what is known with this panel; each is read once, whichever rule asks first."""
    notes = panel.history.notes["replicas"]
    known: ReplicaTrack = notes.setdefault("track", ReplicaTrack(facts(panel)))
    if known.last_fed != panel.step:
        known.last_fed = panel.step
        facts(panel)
        _feed(known, panel)
    return known


def _feed(known: ReplicaTrack, panel: Panel) -> None:
    import pyarrow.compute as pc

    if known.ruined_from is None and any(r.n_bad_grads and not r.skipped for r in panel.records.values()):
        known.ruined_from = panel.step
    table = panel.table
    if not table.num_rows:
        return
    is_replica = pc.and_(pc.is_valid(table["digest"]), pc.starts_with(table["port"], PARAM))
    rows = table.filter(pc.and_(is_replica, pc.equal(table["n_nan"], 0)))
    if rows.num_rows and not any(panel.groups(axis) for axis in HOLD_COPIES):
        _learn(known, panel, rows)
        return
    for axis in HOLD_COPIES:
        groups = panel.groups(axis)
        if not groups:
            continue
        _note_clips(known, panel, axis, groups)
        if rows.num_rows:
            if axis not in known.typed:
                known.typed[axis] = _typed_by_value(rows, axis, groups) if _may_type(rows, axis) else frozenset()
                if axis == "tp" and not known.typed[axis]:
                    known.typed[axis] = _typed_by_content(rows, axis, groups)
                    known.by_content |= {axis} if known.typed[axis] else set()
            compared = compare(rows, groups, expected_equal(rows, axis, known.typed.get(axis, ())))
            known.occasions.setdefault(axis, []).extend(_occasions(panel, compared))


def _learn(known: ReplicaTrack, panel: Panel, rows: pa.Table) -> None:
    """Learn what a replica is in a job that averages by hand: what began equal, moved, and is equal again.

    Or it began otherwise on each rank, and is given one and the same gradient on all.
    """
    import pyarrow.compute as pc

    _note_mixed(known, panel, rows)
    everybody = [panel.ranks]
    if _began_apart(known, panel, rows):
        return
    values = rows.filter(pc.and_(pc.equal(rows["port"], PARAM), pc.equal(rows["call"], 0)))
    if "dp" not in known.typed:
        if not values.num_rows:
            return
        compared = compare(values, everybody)
        equal = [e for e in np.flatnonzero(~compared.differs) if compared.sizes[e] == len(panel.ranks)]
        now = {compared.sites[compared.site[e]]: compared.members(int(e))[0].digest for e in equal}
        if known.began is None:
            known.began, known.start = now, _start(panel, rows)
            varied = values.filter(pc.fill_null(pc.less(values["min"], values["max"]), fill_value=False))
            known.varied = frozenset(varied["site"].to_pylist())
            return
        moved = frozenset(name for name, d in now.items() if known.began.get(name, d) != d)
        if not moved:
            return
        known.typed["dp"] = moved
        siblings = {name.rpartition(".")[0]: name for name in sorted(moved) if "." in name}
        differing = {compared.sites[compared.site[e]] for e in np.flatnonzero(compared.differs)}
        known.left = known.varied & differing & known.began.keys()
        # A constant may be the start of a shard; a vector is none where all that began as more has stayed equal.
        may_differ = known.varied
        if known.varied & moved and known.varied <= known.began.keys() and not differing & known.varied:
            vectors = values.filter(pc.equal(pc.list_value_length(values["shape"]), 1))
            may_differ = known.varied.union(vectors["site"].to_pylist())
        known.norms = _norms_apart(known, values, differing & known.began.keys(), moved)
        reduced = known.start.reduced if known.start is not None else frozenset[str]()
        for name in sorted(differing & known.began.keys() & may_differ):
            beside = siblings.get(name.rpartition(".")[0])
            if beside is not None and (beside in reduced or not reduced):  # else each rank has made the same by itself
                known.parted.append((panel.step, name, beside))
    _note_late(known, panel, values, rows)
    compared = compare(rows, everybody, expected_equal(rows, "dp", known.typed["dp"]))
    known.occasions.setdefault("dp", []).extend(_occasions(panel, compared))


def _note_late(known: ReplicaTrack, panel: Panel, values: pa.Table, rows: pa.Table) -> None:
    """Learn of what comes later, such as a part that is unfrozen: it is a copy once it has moved and is equal."""
    import pyarrow.compute as pc

    everybody = [panel.ranks]
    compared, began = compare(values, everybody), known.began or {}
    is_whole = compared.sizes == len(panel.ranks)
    equal = np.flatnonzero(~compared.differs & is_whole)
    now = {compared.sites[compared.site[e]]: compared.members(int(e))[0].digest for e in equal}
    differing = {compared.sites[i] for i in compared.site[compared.differs & is_whole]}
    for name, digest in now.items():
        if name not in began and name not in known.typed["dp"]:
            first = known.late.setdefault(name, (panel.step, digest))
            if first[1] != digest:
                known.typed["dp"] |= {name}
    apart = differing & known.late.keys() - known.typed["dp"]
    if apart:
        grads = rows.filter(pc.and_(pc.equal(rows["port"], GRAD), pc.greater(rows["sumsq"], 0.0)))
        used = compare(grads, everybody)
        one_for_all = {used.sites[i] for i in used.site[~used.differs & (used.sizes == len(panel.ranks))]}
        for name in sorted(apart & one_for_all):
            known.late_apart.setdefault(name, []).append(panel.step)


def _norms_apart(
    known: ReplicaTrack, values: pa.Table, differing: Collection[str], moved: Collection[str]
) -> tuple[str, ...]:
    """Return the norms of a job whose ranks share the data and add up the gradients of copies, but of no norm.

    A norm works on whole channels: each rank's part of them would be narrower than the copies.
    """
    start = known.start
    if start is None or not start.has_same_data or not start.reduced & set(moved):
        return ()
    rows = values.select(["site", "module", "shape"]).to_pylist()
    shapes = {row["site"]: tuple(row["shape"]) for row in rows}
    norms = {row["site"] for row in rows if NORM.search(row["module"] or "")}
    widths = {size for name in moved if name not in norms for size in shapes.get(name, ())}
    are_whole = all(len(shapes[name]) == 1 and shapes[name][0] in widths for name in norms)
    is_so = len(norms) > 1 and norms <= set(differing) and not norms & start.reduced and are_whole
    return tuple(sorted(norms)) if is_so else ()


def _reduced(panel: Panel, grads: pa.Table) -> frozenset[str]:
    """Return parameters whose gradients differ over the ranks before the program reduces any, and then do not."""
    import pyarrow.compute as pc

    local = panel.where(port=LOCAL)
    made, used = (compare(t, [panel.ranks]) for t in (local.filter(pc.is_valid(local["digest"])), grads))
    differ = {made.sites[i] for i in made.site[made.differs]}
    return frozenset(differ & {used.sites[i] for i in used.site[~used.differs]})


def _start(panel: Panel, rows: pa.Table) -> Start:
    import pyarrow.compute as pc

    def are_same(table: pa.Table) -> bool:
        found = compare(table.filter(pc.is_valid(table["digest"])), [panel.ranks])
        return bool(len(found.site)) and not found.differs.any() and bool((found.sizes == len(panel.ranks)).all())

    grads = rows.filter(pc.and_(pc.equal(rows["port"], GRAD), pc.greater(rows["sumsq"], 0.0)))
    occasions = _occasions(panel, compare(grads, [panel.ranks]))
    losses = [record.loss for record in panel.records.values() if record.loss is not None]
    batches = panel.where(phase="data", port=BATCH_PORT)
    is_label = pc.starts_with(batches["site"], BATCH_LOSS)  # of which a rank may take those of its part
    is_given = pc.and_not(pc.starts_with(batches["site"], BATCH_PREFIX), is_label)
    return Start(
        step=panel.step, gradients=occasions[0] if occasions else None,
        is_alike=len(losses) == len(panel.ranks) and max(losses) - min(losses) <= SAME_LOSS * abs(max(losses)),
        draws_alike=are_same(panel.where(site=f"{RNG_PREFIX}cpu", port=RNG_PORT)),
        reduced=_reduced(panel, grads),
        has_same_data=are_same(batches.filter(is_given)),
    )  # fmt: skip


def _note_mixed(known: ReplicaTrack, panel: Panel, rows: pa.Table) -> None:
    """Note parameters that differ over the ranks, although their gradients are added up as if they were the same."""
    import pyarrow.compute as pc

    local, values = (
        panel.where(port=LOCAL),
        rows.filter(pc.and_(pc.equal(rows["port"], PARAM), pc.equal(rows["call"], 0))),
    )
    if not values.num_rows:
        return
    tables = {
        PARAM: values,
        GRAD: rows.filter(pc.and_(pc.equal(rows["port"], GRAD), pc.greater(rows["sumsq"], 0.0))),
        LOCAL: local.filter(pc.is_valid(local["digest"])),
    }
    differ: dict[str, set[str]] = {}
    equal: dict[str, set[str]] = {}
    for port, table in tables.items():
        compared = compare(table, [panel.ranks])
        whole = compared.sizes == len(panel.ranks)
        differ[port] = {compared.sites[i] for i in compared.site[whole & compared.differs]}
        equal[port] = {compared.sites[i] for i in compared.site[whole & ~compared.differs]}
    if known.mixed is None:
        known.mixed = {name: [] for name in sorted(differ[PARAM])}
    for name in known.mixed.keys() & differ[PARAM] & differ[LOCAL] & equal[GRAD]:
        known.mixed[name].append(panel.step)


def _began_apart(known: ReplicaTrack, panel: Panel, rows: pa.Table) -> bool:
    """Return whether most parameters share their gradient over all ranks, although they began with other values."""
    import pyarrow.compute as pc

    everybody = [panel.ranks]
    grads = rows.filter(pc.and_(pc.equal(rows["port"], GRAD), pc.greater(rows["sumsq"], 0.0)))
    if known.is_apart or len(panel.ranks) < 2 or not grads.num_rows:
        return False
    compared = compare(grads, everybody)
    shared = {compared.sites[compared.site[e]] for e in np.flatnonzero(~compared.differs)}
    of_all = {compared.sites[i] for i in compared.site}
    values = rows.filter(pc.and_(pc.equal(rows["port"], PARAM), pc.equal(rows["call"], 0)))
    if known.apart is None:
        known.shared, known.apart = shared, _occasions(panel, compare(values, everybody))
        return False
    known.shared &= shared
    apart = [o for o in known.apart if 2 * o.n_differ > o.n and o.n > 1]
    if not apart or 2 * len(known.shared) <= len(of_all):
        return False
    known.is_apart = True
    known.typed["dp"] = frozenset(known.shared)
    known.occasions["dp"] = apart
    return True


def _may_type(rows: pa.Table, axis: str) -> bool:
    """Return whether replicas may be told by value: for dp always, for tp beside known placements."""
    if axis != "tp":
        return axis == "dp"
    return any("tp=" in text for text in codes(rows, "placement")[1])


def _typed_by_value(rows: pa.Table, axis: str, groups: Sequence[Sequence[int]]) -> frozenset[str]:
    """Return parameters without a placement if all begin equal on all ranks, matrices among them; else none."""
    import pyarrow.compute as pc

    parameters = rows.filter(pc.and_(pc.equal(rows["port"], PARAM), pc.equal(rows["call"], 0)))
    every = frozenset(parameters["site"].to_pylist())
    said = expected_equal(parameters, axis)
    silent = expected_equal(parameters, axis, every) & ~said
    compared = compare(parameters, groups, silent)
    has_matrix = bool(pc.any(pc.greater_equal(pc.list_value_length(parameters["shape"]), 2)).as_py())
    if not len(compared.site) or compared.differs.any() or not has_matrix:
        return frozenset()
    return frozenset(compared.sites[i] for i in np.unique(compared.site))


def _typed_by_content(rows: pa.Table, axis: str, groups: Sequence[Sequence[int]]) -> frozenset[str]:
    """Return parameters without a placement that began as the same random numbers, if other matrices did not.

    Who makes parts of layers under a seed of each rank's own means what is the same to be a copy.
    """
    import pyarrow.compute as pc

    parameters = rows.filter(pc.and_(pc.equal(rows["port"], PARAM), pc.equal(rows["call"], 0)))
    every = frozenset(parameters["site"].to_pylist())
    silent = expected_equal(parameters, axis, every) & ~expected_equal(parameters, axis)
    compared = compare(parameters, groups, silent)
    differing = {compared.sites[i] for i in compared.site[compared.differs]}
    is_matrix = pc.greater_equal(pc.list_value_length(parameters["shape"]), 2)
    is_varied = pc.fill_null(pc.less(parameters["min"], parameters["max"]), fill_value=False)
    if not differing & {*parameters.filter(is_matrix)["site"].to_pylist()}:
        return frozenset()
    varied = {*parameters.filter(pc.and_(is_varied, is_matrix))["site"].to_pylist()}
    return frozenset(varied & {compared.sites[i] for i in compared.site} - differing)


def _occasions(panel: Panel, compared: Compared) -> list[Occasion]:
    names: list[What] = ["param" if p == PARAM else "grad" if p == GRAD else "state" for p in compared.ports]
    found: list[Occasion] = []
    for what, call in sorted({(names[p], int(c)) for p, c in zip(compared.port, compared.call, strict=True)}):
        of_port = np.array([name == what for name in names], dtype=np.bool_)[compared.port]
        mine = of_port & (compared.call == call)
        bad = np.flatnonzero(mine & compared.differs)
        members = {int(e): compared.members(int(e)) for e in bad[:DETAILS]}
        found.append(
            Occasion(
                step=panel.step, what=what, is_after=call == AFTER, n=len(np.unique(compared.site[mine])),
                n_differ=len(np.unique(compared.site[bad])),
                differences=tuple(difference(compared.sites[compared.site[e]], m) for e, m in members.items()),
                is_local=what == "grad" and _is_local(panel, compared, members),
            )
        )  # fmt: skip
    return found


def _is_local(panel: Panel, compared: Compared, members: dict[int, list[Member]]) -> bool:
    """Return whether the optimizer sees what each rank had before any reduction (recorded on some steps only)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not members:
        return False
    table = panel.where(port="grad_local")
    sites = pa.array([compared.sites[compared.site[e]] for e in members])
    table = table.filter(pc.and_(pc.is_valid(table["digest"]), pc.is_in(table["site"], value_set=sites)))
    picked: list[dict[str, Any]] = table.select(["rank", "site", "digest"]).to_pylist()
    local = {(row["rank"], row["site"]): row["digest"] for row in picked}
    pairs = [(local.get((m.rank, compared.sites[compared.site[e]])), m.digest) for e, ms in members.items() for m in ms]
    return bool(local) and all(before == after for before, after in pairs)


def _note_clips(known: ReplicaTrack, panel: Panel, axis: str, groups: Sequence[tuple[int, ...]]) -> None:
    table = panel.where(site=CLIP, port="value")
    values: dict[int, float] = dict(zip(table["rank"].to_pylist(), table["sum"].to_pylist(), strict=True))
    for ranks in groups:
        here = {rank: values[rank] for rank in ranks if rank in values}
        if len(here) < 2:
            continue
        least, most = min(here.values()), max(here.values())
        began, since = known.clipped.get(ranks, (None, None))
        began, since = (
            (panel.step if began is None else began, since) if most > (1 + ROUNDED) * least else (None, panel.step)
        )
        known.clipped[ranks] = began, since
        if began is not None and most > (1 + SPREAD) * least:
            known.clips.setdefault(axis, []).append(
                Spread(step=panel.step, ranks=ranks, values=here, began=began, since=since)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How the members of one group differ in one value."""

    site: str
    ranks: tuple[int, ...]  # of the group, as far as recorded
    odd: tuple[int, ...] = ()  # ranks that differ from the majority; () when there is none (two ranks)
    kind: Kind = "other"
    factors: dict[int, float] = field(default_factory=dict[int, float])  # rank -> of the first rank's value
    largest: int | None = None  # the rank whose norm is far above the others'
    change: float | None = None  # kind element: by how much


def difference(site: str, members: Sequence[Member]) -> Difference:
    """Classify one value that is not the same on all members."""
    ranks = tuple(m.rank for m in members)
    counted = Counter(m.digest for m in members).most_common(2)
    has_majority = len(counted) > 1 and counted[0][1] > counted[1][1] and 2 * counted[0][1] > len(members)
    usual = counted[0][0] if has_majority else members[0].digest
    base = next(m for m in members if m.digest == usual)
    others = [m for m in members if m.digest != usual]
    found = [_against(base, other) for other in others]
    kinds: set[Kind] = {each[0] for each in found if each[0] != "rounding"}
    kind: Kind = "rounding" if not kinds else next(iter(kinds)) if len(kinds) == 1 else "other"
    factors = {base.rank: 1.0} | {m.rank: 1.0 for m in members if m.digest == usual}
    factors |= {other.rank: factor for other, (_, factor, _) in zip(others, found, strict=True)}
    return Difference(
        site=site, ranks=ranks, odd=tuple(m.rank for m in others) if has_majority else (), kind=kind,
        factors=dict(sorted(factors.items())) if kind == "factor" else {}, largest=_largest(members),
        change=found[0][2] if kind == "element" else None,
    )  # fmt: skip


def common_factors(differences: Sequence[Difference]) -> dict[int, float] | None:
    """Return the factors by rank if all values that differ beyond rounding do so by the same, not 1; else None."""
    real = [d for d in differences if d.kind != "rounding"]
    if not real or any(d.kind != "factor" for d in real):
        return None
    by_group: dict[tuple[int, ...], dict[int, float]] = {}
    for each in real:
        known = by_group.setdefault(each.ranks, each.factors)
        relative = [_ratio(known, r) / _ratio(each.factors, r) - 1.0 for r in each.ranks if r in known]
        if any(abs(value) > 10 * PARALLEL for value in relative):
            return None
    factors = by_group[real[0].ranks]
    is_one = all(abs(_ratio(factors, rank) - 1.0) <= 10 * PARALLEL for rank in factors)
    return None if is_one else factors


def _ratio(factors: dict[int, float], rank: int) -> float:
    return factors[rank] / next(iter(factors.values()))


def _against(base: Member, other: Member) -> tuple[Kind, float, float | None]:
    """Return (kind, factor, change of one element) of another member's value against the usual one."""
    a, b = base.sketch, other.sketch
    if a is None or b is None or len(a) != len(b) or not all(map(math.isfinite, (*a, *b))):
        return "other", 1.0, None
    tolerance = ROUNDING.get(base.dtype, ROUNDING["float32"])
    size = max(math.hypot(*a), math.hypot(*b))
    change = [y - x for x, y in zip(a, b, strict=True)]
    if math.hypot(*change) <= tolerance * size:
        return "rounding", 1.0, None
    if min(base.n, other.n) < FEW:
        return "other", 1.0, None
    least, most = min(map(abs, change)), max(map(abs, change))
    if most > 1e-4 * size and most - least <= ONE_ELEMENT * most:
        return "element", 1.0, most
    square = math.fsum(x * x for x in a)
    factor = math.fsum(x * y for x, y in zip(a, b, strict=True)) / square if square else 0.0
    residual = math.hypot(*(y - factor * x for x, y in zip(a, b, strict=True)))
    norms = math.sqrt(other.sumsq / base.sumsq) if base.sumsq and other.sumsq else abs(factor)
    is_factor = factor > 0 and residual <= max(PARALLEL, tolerance) * math.hypot(*b)
    if is_factor and abs(norms / factor - 1.0) <= max(10 * PARALLEL, tolerance):
        return "factor", factor, None
    return "other", 1.0, None


def _largest(members: Sequence[Member]) -> int | None:
    ordered = sorted(members, key=lambda m: m.sumsq)
    is_far = ordered[-1].sumsq > 100 * ordered[-2].sumsq  # a norm ten times the next
    return ordered[-1].rank if is_far else None
