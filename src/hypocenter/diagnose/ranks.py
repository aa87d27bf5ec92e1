"""What no rank can know alone: every rank's gradient was finite, and their sum was not.

A rank that replays its step and finds nothing writes down its share of the gradient that had gone bad. Here the shares
of all ranks are added up, element by element, as the all-reduce did.

What follows from a faulty device or a wrong kernel is told under it: the wrong values, and where they went.

Rules and evidence see a gradient far out, a sum of ranks that does not come out, NaN some steps later; the check that
did the micro-batch again (HC341 to HC343) knows why.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from hypocenter.diagnose.evidence import AddedUp, Evidence, Share
from hypocenter.diagnose.group import Folded, told_under
from hypocenter.diagnose.judged_evidence import JudgedEvidence, RunEvidence, judged_piece
from hypocenter.nouns import Finding

HARDWARE = ("HC341", "HC342", "HC343")
_KINDS = frozenset({"nonfinite", "exploding", "spike", "divergence", "comm", "desync", "hardware", "overflow-risk"})
_FOLLOWING = frozenset({
    "unknown", "exploding-activation", "exploding-gradient", "format-overflow", "accumulation-overflow",
    "inf-minus-inf", "zero-times-inf", "bad-parameter", "hardware-fault", "kernel-bug", "collective-fault",
    "replica-drift", "noise",
})  # fmt: skip
"""Causes that wrong bits bring about. One that names a line of the program, or the data, stands by itself."""
_LEFT = frozenset({"nonfinite", "exploding", "spike"})  # what one wrong update leaves in the parameters
LASTING = 16  # steps in which what comes after a single wrong update is laid to it
_SHOWN = 6  # consequences that are named


def together(pieces: RunEvidence) -> RunEvidence:
    """Return the pieces, those of a step judged again where the shares of all ranks explain them."""
    by_step: dict[int, list[JudgedEvidence]] = defaultdict(list)
    for piece in pieces.found:
        by_step[piece.finding.step].append(piece)
    judged = {id(e): again for group in by_step.values() for e, again in _judged_again(group)}
    if not judged:
        return pieces
    found = sorted(
        (judged.get(id(e), e) for e in pieces.found),
        key=lambda e: (e.finding.step, not e.is_located, e.finding.rank),
    )
    return replace(pieces, found=tuple(found))


def _judged_again(group: Sequence[JudgedEvidence]) -> list[tuple[JudgedEvidence, JudgedEvidence]]:
    unexplained = {e.finding.rank: e for e in group if e.verdict.cause == "unknown" and e.evidence.shares}
    total = add_up([unexplained[rank].evidence for rank in sorted(unexplained)])
    if total is None:
        return []
    return [(e, _with_total(e, total)) for e in unexplained.values()]


def _with_total(piece: JudgedEvidence, total: AddedUp) -> JudgedEvidence:
    others = tuple(p for p in piece.evidence.bad_params if p != total.param)
    evidence = replace(piece.evidence, added_up=total, bad_params=(total.param, *others), why_not="")
    return judged_piece(evidence, rank=piece.finding.rank, bundle=piece.finding.bundle)


def add_up(evidence: Sequence[Evidence]) -> AddedUp | None:
    """Return the parameter whose shares come to more than its format holds, farthest above; None without one.

    Args:
        evidence: of one step, by rank.
    """
    if not evidence or len(evidence) != evidence[0].world_size or len(evidence) < 2:
        return None
    by_param = [{share.param: share for share in each.shares} for each in evidence]
    common = [param for param in by_param[0] if all(param in shares for shares in by_param)]
    totals = [total for param in common if (total := _total([shares[param] for shares in by_param])) is not None]
    return max(totals, key=lambda total: (total.is_exact, total.absmax), default=None)


def _total(shares: Sequence[Share]) -> AddedUp | None:
    first = shares[0]
    for share in shares:
        is_same = (share.n, share.at, share.n_nonfinite) == (first.n, first.at, first.n_nonfinite)
        if not is_same or share.absmax > share.limit or len(share.values) != len(share.at):
            return None  # not copies of one gradient, or not finite on one rank alone
    sums = [abs(sum(values)) for values in zip(*(share.values for share in shares), strict=True)]
    if sums and min(sums) > first.limit:
        worst = sums.index(max(sums))
        return _of(first, max(sums), tuple(share.values[worst] for share in shares), is_exact=True)
    largest = tuple(share.absmax for share in shares)
    if first.n_nonfinite == first.n > 1 and sum(largest) > first.limit:  # clipping has spread it to all elements
        return _of(first, sum(largest), largest, is_exact=False)
    return None


def _of(share: Share, absmax: float, shares: tuple[float, ...], *, is_exact: bool) -> AddedUp:
    return AddedUp(
        param=share.param, dtype=share.dtype, limit=share.limit, absmax=absmax, shares=shares, is_exact=is_exact
    )


def with_device(folded: Sequence[Folded]) -> tuple[Folded, ...]:
    """Return the findings; those that a faulty device or kernel explains are told in its `then`."""
    blamed = [f for f in folded if f.finding.code in HARDWARE]
    if not blamed:
        return tuple(folded)
    found = told_under(folded, lambda each: None if each in blamed else _leader(each.finding, blamed), _with)
    return tuple(_first(found, blamed))


def _leader(finding: Finding, blamed: Sequence[Folded]) -> Folded | None:
    if finding.kind not in _KINDS or finding.cause not in _FOLLOWING or finding.severity == "note":
        return None
    before = [b for b in blamed if b.finding.step <= finding.step]
    lasting = [b for b in before if _explains(b.finding, finding)]
    return max(lasting, key=lambda b: (b.finding.step, b.finding.rank == finding.rank), default=None)


def _explains(device: Finding, finding: Finding) -> bool:
    """Return whether a fault explains it: all in its own step; later what it left in parameters, or repeats."""
    if device.code != "HC341" or device.step == finding.step:
        return True
    return finding.kind in _LEFT and finding.step <= device.step + LASTING


def _first(kept: Sequence[Folded], blamed: Sequence[Folded]) -> list[Folded]:
    """Sort the findings so that in one step the device comes before the rest."""
    steps = {b.finding.step for b in blamed}
    return sorted(
        kept,
        key=lambda f: (
            f.finding.severity == "note", f.finding.step, f.finding.step in steps and f.finding.code not in HARDWARE
        ),
    )  # fmt: skip


def _with(device: Folded, findings: Sequence[Finding]) -> Folded:
    said = [f"step {f.step}, rank {f.rank}: {f.title}" for f in findings[:_SHOWN]]
    more = [f"{len(findings) - _SHOWN} further findings"] if len(findings) > _SHOWN else []
    bundle = device.finding.bundle or next((f.bundle for f in findings if f.bundle), None)
    then = tuple(dict.fromkeys((*device.finding.then, *said, *more)))
    return replace(device, finding=replace(device.finding, then=then, bundle=bundle))
