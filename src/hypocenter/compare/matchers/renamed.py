"""Spots whose names say the same in two namings: wrapper prefixes and the rule tables of `compare/naming`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from hypocenter.compare.comparison import Layout, Pair, Side, SiteCard, Spot
from hypocenter.compare.naming.canonical import Naming, is_vocabulary, naming_of
from hypocenter.compare.naming.tables import template
from hypocenter.compare.pairing.chain import Task, matcher
from hypocenter.compare.pairing.fusing import FUSED, Fusion, Order, fused_layout, order_by_sketch, same_order
from hypocenter.compare.pairing.layouts import is_parameter, layout_of
from hypocenter.compare.pairing.ports import PortPair, Siblings, canonical_port, pair_ports
from hypocenter.record.facts_file import Facts

Cards = dict[str, list[SiteCard]]
_SIZES = ("head_dim", "hidden_size_per_attention_head", "kv_channels", "d_kv", "key_value_proj_dim")
_GROUPS = (
    "num_key_value_heads", "num_query_groups", "num_query_groups_per_partition", "n_kv_heads", "n_kv_head",
    "kv_num_heads", "num_kv_heads",
)  # fmt: skip
_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "num_attention_heads_per_partition")


@matcher("renamed", order=30)
def pair(task: Task) -> Iterator[Pair]:
    """Bring both runs into canonical names; pair what then has the same, then fused with split, then shared names."""
    run = _Run(
        task=task,
        baseline=naming_of(task.all_baseline),
        candidate=naming_of(task.all_candidate),
        heads=tuple(head_sizes((*task.all_baseline, *task.all_candidate), task.baseline_facts, task.candidate_facts)),
    )
    ours, theirs = _by_role(run.baseline, task.baseline), _by_role(run.candidate, task.candidate)
    everything = _by_role(run.baseline, task.all_baseline), _by_role(run.candidate, task.all_candidate)
    for role in [name for name in ours if name in theirs]:
        siblings = Siblings(baseline=everything[0][role], candidate=everything[1][role])
        other_order = _other_order(run, role, everything)
        found = list(_same_role(run, role, ours[role], theirs[role], siblings, other_order))
        yield from found
        _take(ours[role], {pair.baseline[0] for pair in found})
        _take(theirs[role], {pair.candidate[0] for pair in found})
    fused = [*_fused(run, ours, theirs, "baseline"), *_fused(run, theirs, ours, "candidate")]
    yield from fused
    taken = {spot for found in fused for spot in found.baseline}, {spot for found in fused for spot in found.candidate}
    for cards in ours.values():
        _take(cards, taken[0])
    for cards in theirs.values():
        _take(cards, taken[1])
    yield from _shared(run, ours, theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    task: Task
    baseline: Naming
    candidate: Naming
    heads: tuple[int, ...]

    def why(self, ours: str, theirs: str) -> str:
        a, b = template(self.baseline.path(ours)), template(self.candidate.path(theirs))
        if a == b:
            return "same name without wrappers"
        return f"rule {self.baseline.name} - {self.candidate.name}: {a} is {b}"


def _by_role(naming: Naming, cards: Sequence[SiteCard]) -> Cards:
    found: Cards = defaultdict(list)
    for card in cards:
        kind = "parameter" if is_parameter(card) else "batch" if card.spot.phase == "data" else "module"
        found[f"{kind} {naming.role(card).name}"].append(card)
    return dict(found)


def _take(cards: list[SiteCard], taken: AbstractSet[Spot]) -> None:
    cards[:] = [card for card in cards if card.spot not in taken]


def _same_role(
    run: _Run,
    role: str,
    ours: Sequence[SiteCard],
    theirs: Sequence[SiteCard],
    siblings: Siblings,
    other_order: Order | None,
) -> Iterator[Pair]:
    name = role.partition(" ")[2]
    for found in pair_ports(ours, theirs, siblings, padding=is_vocabulary(name)):
        why = run.why(found.baseline.spot.site, found.candidate.spot.site)
        yield Pair(
            baseline=(found.baseline.spot,),
            candidate=(found.candidate.spot,),
            by="renamed",
            layout=_fused_both(other_order, found) or _told_apart(run, name, found.baseline, found.layout),
            why=f"{why}; {found.why}" if found.why else why,
        )


def _other_order(run: _Run, role: str, everything: tuple[Cards, Cards]) -> Order | None:
    """Return the candidate's order of parts in a module that both sides fuse; None when it is the baseline's."""
    module = role.partition(" ")[2]
    module = module.rpartition(".")[0] if role.startswith("parameter ") else module
    if not module.endswith(tuple(f".{ending}" for ending, _ in FUSED)):
        return None
    told = [
        naming.table.fused.get(template(module)) if naming.table else None for naming in (run.baseline, run.candidate)
    ]
    if None in told:
        return None
    weights = [
        next((c for c in cards.get(f"parameter {module}.weight", ()) if c.spot.port == "value"), None)
        for cards in everything
    ]
    ours, theirs = weights
    same = same_order(ours, theirs) if ours and theirs else None
    if same or (same is None and told[0] == told[1]):
        return None
    candidate = run.candidate.table
    differs = told[0] == told[1] and candidate is not None and candidate.order_varies
    return "interleaved" if (told[1] == "interleaved") != differs else "concatenated"


def _fused_both(order: Order | None, found: PortPair) -> Layout | None:
    port = canonical_port(found.baseline.spot.port).partition("[")[0]
    if order is None or port.endswith("in") or not found.baseline.shape:
        return None
    turned = found.layout.swapped or found.layout.kind == "transposed"
    dim = 0 if is_parameter(found.baseline) else len(found.baseline.shape) - 1
    return Layout(kind=order, dim=dim, groups=0, swapped=turned)


def _told_apart(run: _Run, name: str, card: SiteCard, layout: Layout) -> Layout:
    """Return the layout, swapped when batch and sequence are equally long and the namings order them differently."""
    square = len(card.shape) >= 3 and card.shape[0] == card.shape[1]
    if not square or is_parameter(card) or layout.kind not in ("identity", "padded"):
        return layout
    if run.baseline.is_sequence_first(name) == run.candidate.is_sequence_first(name):
        return layout
    return replace(layout, kind="swapped" if layout.kind == "identity" else layout.kind, swapped=True)


def _fused(run: _Run, wholes: Cards, parts: Cards, side: Side) -> Iterator[Pair]:
    """Pair fused modules of one side (`side`) with the parts that the other side has."""
    naming = run.baseline if side == "baseline" else run.candidate
    fusions: dict[str, Fusion] = {}
    for role in sorted(wholes, key=lambda name: not name.startswith("parameter ")):  # weights tell the order
        for ending, pieces in FUSED:
            stem, leaf = _stem(role, ending)
            if stem is None:
                continue
            names = [f"{stem}{piece}{leaf}" for piece in pieces]
            if not all(parts.get(name) for name in names) or (len(pieces) == 1 and _has_gate(parts, stem, leaf)):
                continue
            module = f"{stem}{ending}".partition(" ")[2]
            for whole, split in _aligned(wholes[role], [parts[name] for name in names]):
                fusion = _fusion(run, naming, module, whole, split, fusions)
                yield from _fused_pair(run, whole, split, fusion, side)


def _stem(role: str, ending: str) -> tuple[str | None, str]:
    """Split the role of a fused module, or of its parameter, into (text before, text after); (None, "") of others."""
    head, dot, leaf = role.rpartition(".") if role.startswith("parameter ") else (role, "", "")
    if head.endswith((f".{ending}", f" {ending}")):
        return head[: -len(ending)], dot + leaf
    return None, ""


def _has_gate(parts: Cards, stem: str, leaf: str) -> bool:
    return bool(parts.get(f"{stem}gate{leaf}"))


def _aligned(
    wholes: Sequence[SiteCard], pieces: Sequence[Sequence[SiteCard]]
) -> Iterator[tuple[SiteCard, list[SiteCard]]]:
    """Yield each spot of a fused module with the spots of the same port and call of its parts."""
    tables = [{_key(card): card for card in cards} for cards in pieces]
    for whole in wholes:
        split = [table.get(_key(whole)) for table in tables]
        if all(split):
            yield whole, [card for card in split if card]


def _key(card: SiteCard) -> tuple[str, str, int]:
    return card.spot.phase, canonical_port(card.spot.port), card.spot.call


def _fusion(
    run: _Run, naming: Naming, module: str, whole: SiteCard, split: Sequence[SiteCard], known: dict[str, Fusion]
) -> Fusion:
    """Return how parts lie in a fused module: by its weight's sketch, else by the table. Decided once a module."""
    seen = order_by_sketch(whole, split) if whole.spot.phase == "param" else None
    if module in known and seen is None:
        return known[module]
    told = naming.table.fused.get(template(module), "concatenated") if naming.table else "concatenated"
    order: Order = seen or ("interleaved" if told == "interleaved" else "concatenated")
    dim = 0 if is_parameter(whole) else -1
    sizes = tuple(card.shape[dim] if card.shape else 0 for card in split)
    facts = (run.task.baseline_facts, run.task.candidate_facts)
    groups = sizes[0] if module.endswith("gate_up") else n_groups(sizes, run.heads, *facts)
    why = "as the weights' sketches show" if seen else f"as {naming.name} does"
    fusion = Fusion(order=order, groups=groups if order == "interleaved" else 1, why=f"{order} {why}")
    if is_parameter(whole) or canonical_port(whole.spot.port).endswith("out[0]"):
        known[module] = fusion
    return fusion


def _fused_pair(run: _Run, whole: SiteCard, split: Sequence[SiteCard], fusion: Fusion, side: Side) -> Iterator[Pair]:
    enters = canonical_port(whole.spot.port).partition("[")[0].endswith("in")
    scalar = not whole.shape  # an optimizer's step count
    if len(split) == 1:
        layout = layout_of(whole, split[0])
    else:
        layout = _copies(whole, split) if enters or scalar else fused_layout(whole, split, fusion)
    if layout is None:
        return
    one, many = (whole.spot,), tuple(card.spot for card in split)
    ours, theirs = (one, many) if side == "baseline" else (many, one)
    why = run.why(ours[0].site, theirs[0].site)
    if layout.kind in ("concatenated", "interleaved"):
        why = f"{why}; {fusion.why}"
    yield Pair(baseline=ours, candidate=theirs, by="renamed", layout=layout, why=why)


def _copies(whole: SiteCard, split: Sequence[SiteCard]) -> Layout | None:
    layouts = {layout_of(whole, part) for part in split}
    if len(layouts) != 1 or None in layouts:
        return None
    return Layout(kind="copies", swapped=any(layout.swapped for layout in layouts if layout))


def _shared(run: _Run, ours: Cards, theirs: Cards) -> Iterator[Pair]:
    """Pair shared parameters that each side files under another of their names."""
    by_alias: dict[tuple[str, str], list[SiteCard]] = defaultdict(list)
    for cards in theirs.values():
        for card in cards:
            for alias in {*run.candidate.aliases(card), run.candidate.role(card).name}:
                by_alias[(alias, card.spot.port)].append(card)
    taken: set[SiteCard] = set()
    for cards in ours.values():
        for card in cards:
            names = {*run.baseline.aliases(card), run.baseline.role(card).name}
            found = {other for name in names for other in by_alias.get((name, card.spot.port), ())} - taken
            for match in pair_ports([card], list(found)) if len(found) == 1 else []:
                taken.add(match.candidate)
                why = f"{run.why(card.spot.site, match.candidate.spot.site)}; a shared one has several names"
                spots = (card.spot,), (match.candidate.spot,)
                yield Pair(baseline=spots[0], candidate=spots[1], by="renamed", layout=match.layout, why=why)


def head_sizes(cards: Iterable[SiteCard], *facts: Facts | None) -> list[int]:
    """Return sizes that an attention head may have, the best supported first."""
    votes: Counter[int] = Counter()
    for known in facts:
        for module in known.modules if known else ():
            for name in _SIZES:
                _vote(votes, module.attributes.get(name), 1000)
    for card in cards:
        if card.spot.phase == "forward":
            _shown(votes, card)
        elif card.spot.port == "value" and card.spot.site.endswith(("q_norm.weight", "q_layernorm.weight")):
            _vote(votes, card.shape[-1] if card.shape else None, 10)
    return [size for size, _ in votes.most_common()]


def n_groups(sizes: tuple[int, ...], heads: Iterable[int], *facts: Facts | None) -> int:
    """Return the number of query groups when q, k and v (or k and v) have these many rows; 0 when not known."""
    key = sizes[-1]
    for size in heads:
        if key % size == 0 and all(total % size == 0 for total in sizes) and sizes[0] % (key // size) == 0:
            return key // size
    names = _GROUPS if sizes[0] != key else (*_GROUPS, *_HEADS)
    for known in facts:
        for module in known.modules if known else ():
            for name in names:
                groups = module.attributes.get(name)
                if isinstance(groups, int) and groups > 0 and all(total % groups == 0 for total in sizes):
                    return groups
    return 0


def _shown(votes: Counter[int], card: SiteCard) -> None:
    """Count votes for a head size from a tensor that shows it: cached keys, inputs of core attention, rotary angles."""
    shape, port, site = card.shape, card.spot.port, card.spot.site
    if len(shape) == 4 and ("past_key_value" in port or "core_attention" in site or "inner_attention" in site):
        _vote(votes, shape[-1], 10)
    elif len(shape) >= 2 and "rotary" in site and port.startswith("out"):
        _vote(votes, shape[-1], 1)


def _vote(votes: Counter[int], size: object, weight: int) -> None:
    if isinstance(size, int) and not isinstance(size, bool) and size > 1:
        votes[size] += weight
