"""Stage 1: are the two programs ready to be compared? Same batches, same weights, nothing random, one learning rate."""

from __future__ import annotations

import math
from dataclasses import replace

from hypocenter.align.alignment import StageResult, named, of_comparison, result
from hypocenter.align.context import Context, is_batch, is_weight
from hypocenter.align.plan import SideName
from hypocenter.align.repeats import first_unequal
from hypocenter.align.rounding import unit
from hypocenter.checklist.checklist import Configuration
from hypocenter.checklist.data.rows import of_batches
from hypocenter.checklist.items.item import load
from hypocenter.compare.comparison import Comparison, RowComparison, SiteCard
from hypocenter.compare.sentences import place
from hypocenter.record.facts_file import ModuleFacts
from hypocenter.record.reader import RecordedRun

_ORDER = "data.batches"  # told by digests of all steps
SIDES: tuple[SideName, SideName] = ("baseline", "candidate")


def judge(context: Context) -> StageResult:
    """Fail at the first of these that differs: batches, weights, dropout, determinism, learning rate."""
    told: list[str] = []
    figures: dict[str, list[str]] = {}
    doubts: list[StageResult] = []
    for check in (_batches, _tokens, _weights, _dropout, _determinism, _rate):
        found = check(context, told)
        if found is not None and found.verdict == "failed":
            return found
        if found is not None and found.verdict == "cannot-tell":
            doubts.append(found)
        if found is not None:
            figures |= found.figures
    if doubts:
        return replace(doubts[0], why=(*doubts[0].why, *(one.sentence for one in doubts[1:]), *told))
    return result(1, "passed", "; ".join(told[:4]), why=tuple(told[4:]), figures=figures)


def _batches(context: Context, told: list[str]) -> StageResult | None:
    last = context.plan.stages.steps - 1
    found = context.compare(is_batch, last, name="batches")
    differing = [row for row in found.rows if row.verdict == "differs"]
    if differing or found.status == "diverged":
        return _other_batches(context, found, differing)
    n = len(found.rows)
    if not n:
        return result(1, "cannot-tell", "no batch was recorded on both sides")
    told.append(f"the batches of {found.n_steps} steps are the same")
    return None


def _other_batches(context: Context, found: Comparison, differing: list[RowComparison]) -> StageResult:
    """Return a failure that says how the batches differ, and what they hold."""
    first = found.first
    step = first.step if first is not None else differing[0].step
    words = f"the batches are not the same: {found.sentence.partition(', first of')[0]}"
    failed, held = of_comparison(1, found, words), _tokens(context, [])
    known = _known(failed.cause, "data-mismatch"), failed.confidence
    if held is not None:
        words, known = f"{words}; {held.sentence}", ("data-mismatch", "proven")
    why = (*(held.why if held is not None else ()), *found.why, "from other batches nothing else can be compared")
    advice = ("give both the same data in the same order: files, seed of the sampler, shuffling",)
    return result(
        1, "failed", words, step=step, phase="data", site=failed.site or differing[0].pair.baseline[0].site,
        cause=known[0], confidence=known[1], why=why, next=(*failed.next, *(held.next if held is not None else advice)),
    )  # fmt: skip


def _tokens(context: Context, told: list[str]) -> StageResult | None:
    """Compare what kept batches hold: are labels shifted alike, ids in range, special ids the same?"""
    runs = context.run("baseline", "steps"), context.run("candidate", "steps")
    configurations = Configuration(label="baseline", kinds=()), Configuration(label="candidate", kinds=())
    found = of_batches(runs, configurations, load())
    apart = [row for row in found.rows if row.verdict == "different" and row.item != _ORDER]
    remarks = [f"{remark.side}: {remark.text}" for row in found.rows for remark in row.remarks]
    if not apart:
        told += remarks
        return None
    first = apart[0]
    words = f"{first.title}: {first.baseline} in the baseline, {first.candidate} in the candidate"
    return result(
        1, "failed", words, step=0, phase="data", site=first.item, cause="data-mismatch", confidence="proven",
        why=(*dict.fromkeys(row.why for row in apart), *remarks), next=tuple(row.fix for row in apart if row.fix),
    )  # fmt: skip


def _weights(context: Context, told: list[str]) -> StageResult | None:
    found = context.compare(is_weight, 0, name="weights")
    rows = [row for row in found.rows if row.step == _first_step(found.rows)]
    apart = [row for row in rows if _is_other(row, context.card("baseline", row.pair.baseline[0]))]
    if apart:
        n = len({row.pair.baseline[0].site for row in apart})
        first = apart[0]
        site = first.pair.baseline[0].site
        error = first.distance.relative if first.distance is not None else float("nan")
        full = of_comparison(1, found)
        return result(
            1, "failed", f"{n} of {len(rows)} weights are not the same before the first step: "
            f"{named(row.pair.baseline[0].site for row in apart)}; {site} differs by {error:.2g}",
            step=first.step, phase="param", site=site, cause=_known(full.cause, "init-mismatch"),
            confidence="proven", why=tuple(found.why),
            next=('weights = "impose" in [stages]: the candidate starts from the baseline\'s weights',
                  *full.next),
            figures={"weights": [row.pair.baseline[0].site for row in apart]},
        )  # fmt: skip
    rounded = [row for row in rows if row.verdict != "equal"]
    if not rows:
        return result(1, "cannot-tell", "no weight of one side has a counterpart on the other", why=tuple(found.notes))
    how = "equal to the bit" if not rounded else f"the same, {len(rounded)} of them to {_farthest(rounded):.1g}"
    lone = [f"{n} of the {side}" for side, n in _lone(context).items() if n]
    told.append(f"{len(rows)} weights are {how}" + (f"; without counterpart: {' and '.join(lone)}" if lone else ""))
    return None


def _farthest(rows: list[RowComparison]) -> float:
    return max((row.distance.relative for row in rows if row.distance is not None), default=0.0)


def _lone(context: Context) -> dict[str, int]:
    """Count the weights without counterpart, by side."""
    matching = context.matching
    left = {"baseline": matching.unmatched_baseline, "candidate": matching.unmatched_candidate}
    return {side: sum(is_weight(card.spot) for card in cards) for side, cards in left.items()}


def _dropout(context: Context, told: list[str]) -> StageResult | None:
    names = _module_names(context)
    found = [dropouts(context.run(side, "steps")) for side in SIDES]
    found[1] = {names.get(site, site): rate for site, rate in found[1].items()}
    if found[0] == found[1]:
        told.append("no dropout" if not found[0] else f"the same dropout on both sides, {_off(context)}")
        return None
    apart = found[0].items() ^ found[1].items()
    sites = list(dict.fromkeys(site for one in found for site, rate in one.items() if (site, rate) in apart))
    first = sites[0]
    rates = [f"{one[first]:g}" if first in one else "none" for one in found]
    return result(
        1, "failed", f"dropout of {first or 'the model itself'} is {rates[0]} in the baseline and {rates[1]} in the "
        f"candidate; {len(sites)} modules in all", phase="forward", site=first, cause="config-mismatch",
        confidence="proven", why=(f"of {named(sites)}",), next=("give both the same dropout; 0 for an alignment",),
    )  # fmt: skip


def _module_names(context: Context) -> dict[str, str]:
    """Map the candidate's names of modules to the baseline's."""
    pairs = [pair for pair in context.matching.pairs if pair.baseline[0].phase == "forward"]
    return {pair.candidate[0].site: pair.baseline[0].site for pair in pairs}


def _off(context: Context) -> str:
    return "left on" if context.plan.stages.dropout else "switched off for the alignment"


def _determinism(context: Context, told: list[str]) -> StageResult | None:
    loose: dict[str, list[str]] = {}
    for side in SIDES:
        once, again = context.run(side, "steps"), context.run(side, "again")
        row = first_unequal(once, again)
        if row is None:
            continue
        where = place(row.pair.baseline[0].site, row.pair.baseline[0].port)
        words = f"the {side} run twice does not do the same: {where} differs at step {row.step}"
        if context.plan.stages.deterministic:
            return result(
                1, "failed", words, step=row.step, phase=row.pair.baseline[0].phase, site=row.pair.baseline[0].site,
                cause="rng-desync" if row.pair.baseline[0].phase in ("data", "param") else "unknown",
                confidence="likely", why=("with --deterministic and one seed both runs should be equal to the bit",),
                next=(f"hypocenter determinism -- {context.plan.side(side).command}",
                      "deterministic = false in [stages]: go on, with this as noise"),
            )  # fmt: skip
        loose[side] = ["not-deterministic"]
        told.append(words)
    if not loose:
        told.append("each side run twice is equal to the bit")
    return result(1, "passed", "", figures=loose)


def _rate(context: Context, told: list[str]) -> StageResult | None:
    rates = {record.lr for side in SIDES for _, record in context.run(side, "steps").step_records()} - {None}
    if context.plan.stages.lr is not None:
        told.append(f"learning rate {context.plan.stages.lr:g} on both sides")
    elif len(rates) > 1:
        told.append("the learning rate is the programs' own, and not constant (lr in [stages] makes it so)")
    return None


def _first_step(rows: tuple[RowComparison, ...]) -> int:
    return min((row.step for row in rows), default=0)


def _is_other(row: RowComparison, card: SiteCard | None) -> bool:
    """Return whether weights are apart by more than one of the two formats rounds; False if that cannot be told."""
    if row.verdict == "equal" or row.distance is None:
        return False
    limit = max(map(unit, row.dtypes))
    if row.distance.depth == "sketch" and card is not None:  # two frameworks add up a sketch in their own orders
        limit = max(limit, unit("float32") * math.log2(max(card.n, 2)))
    return row.distance.low > limit


def _known(cause: str | None, otherwise: str) -> str:
    return cause if cause not in (None, "unknown") else otherwise


def dropouts(run: RecordedRun) -> dict[str, float]:
    """Return the rate of each module that drops values, by path. Empty too where the recording has no facts."""
    facts = run.facts()
    found = ((module.path, _rate_of(module)) for module in (facts.modules if facts is not None else ()))
    return {path: rate for path, rate in found if rate > 0}


def _rate_of(module: ModuleFacts) -> float:
    names = [name for name in module.attributes if "drop" in name.lower()]
    names += ["p"] if "drop" in module.kind.lower() else []
    rates = [module.attributes.get(name) for name in names]
    return max(
        (float(r) for r in rates if isinstance(r, (int, float)) and not isinstance(r, bool) and r < 1), default=0.0
    )
