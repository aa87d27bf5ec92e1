"""Collectives of numbers whose result is known to the bit: who has a wrong one, and whose fault it is.

- Some ranks have the right result, some not: a result is wrong where it was received.
- All have the same wrong sum: what somebody put in is wrong. The error is compared with each rank's numbers (left out,
  counted twice), and the operation is done again in overlapping groups of neighbours: who is wrong in each of its
  groups, while each of the others is right in one?
- Where results are made of parts (all-gather, all-to-all), the wrong part names the rank that it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.judgement import BY_BACKEND
from hypocenter.doctor.over_ranks.reports import Reports, check

TITLES = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
}
_PARTS = ("all-gather", "all-to-all")  # whose results are parts of the ranks, in order

order = 6  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Return one check for each collective that was done."""
    return [check for op in TITLES if (check := _judge(reports, op)) is not None]


def _judge(reports: Reports, op: str) -> Check | None:
    """A collective gives a wrong result.

    What it means
        A card, a link or a library computes wrong sums or loses parts. In training every replica may get the same
        wrong gradient, which no comparison of replicas shows.

    How it is decided
        The ranks put in whole numbers of which every partial sum is exact in the format, each rank different ones,
        so the result is known to the bit in any order: int64, float64, float32, float16, bfloat16, one number, 1031
        and many. A rank whose result is wrong while others have the right one is named. If all have the same wrong
        sum, the error is compared with each rank's numbers, and pairs of ranks do it again.

    What to do
        Take the rank's host out of the job, and test its card and its links.

    When it is wrong
        When a library is built to compress what it sends.
    """
    entries = {rank: r["collectives"][op] for rank, r in reports.at_work.items() if op in r["collectives"]}
    if not entries:
        return None
    wrong = {rank: entry for rank, entry in entries.items() if entry["n_wrong"]}
    if wrong:
        return _wrong(reports, op, wrong, entries)
    some = next(iter(entries.values()))
    skipped = {f"{name} ({why})" for entry in entries.values() for name, why in entry["skipped"]}
    if any("error" in entry for entry in entries.values()) or not some["n_cases"]:
        return _not_done(op, entries)
    return check(
        f"comm.{op}",
        TITLES[op],
        "ok",
        f"{some['n_cases']} cases to the bit on {len(entries)} ranks: {', '.join(some['dtypes'])}"
        + (f"; not checked: {', '.join(sorted(skipped))}" if skipped else ""),
        evidence={"n_cases": some["n_cases"], "dtypes": some["dtypes"], "skipped": sorted(skipped)},
    )


def _not_done(op: str, entries: Mapping[int, Any]) -> Check:
    error = next((entry["error"] for entry in entries.values() if "error" in entry), None)
    skipped = next((why for entry in entries.values() for _, why in entry["skipped"]), "")
    case = f"{error['n_elements']} {error['dtype']}: {error['text']}" if error else skipped
    return check(f"comm.{op}", TITLES[op], "cannot-tell", f"{op} was not done to the end", case or "it was not begun")


def _wrong(reports: Reports, op: str, wrong: Mapping[int, Any], entries: Mapping[int, Any]) -> Check:
    ranks, why = _culprits(reports, op, wrong, entries)
    shown = ranks[0] if ranks and ranks[0] in wrong else min(wrong)
    case = max(wrong[shown]["wrong"], key=lambda each: each["n"])
    again = [each for rank in wrong for each in reports.at_work[rank]["again"] if each["op"] == op]
    comes_again = any(each["n_wrong"] for each in again)
    verb = "makes" if len(ranks) == 1 else "make"
    whom = f"{reports.named(ranks)} {verb} {op} wrong" if ranks else f"{op} is wrong on {reports.named(wrong)}"
    evidence = {
        "cases": {str(rank): entry["wrong"][:2] for rank, entry in list(wrong.items())[:16]},
        "again": again[:4],
        "suspects": list(ranks),
    }
    return check(
        f"comm.{op}",
        TITLES[op],
        "problem",
        f"{whom}: {_example(case, shown)}",
        f"{why}; {_again(again, comes_again)}",
        _fix(reports, ranks),
        rank=ranks[0] if len(ranks) == 1 else None,
        host=reports.host(ranks[0]) if len(ranks) == 1 else "",
        evidence=evidence,
    )


def _example(case: Mapping[str, Any], rank: int) -> str:
    if "first" not in case:
        return f"the {case['dtype']} numbers that it put in were changed at rank {rank}"
    first = case["first"]
    return (
        f"{case['n_wrong']:,} of {case['n']:,} {case['dtype']} at rank {rank}, element {first['index']} is "
        f"{first['actual']:.17g}, exact is {first['expected']:.17g}"
    )


def _culprits(reports: Reports, op: str, wrong: Mapping[int, Any], entries: Mapping[int, Any]) -> tuple[list[int], str]:
    """Return (ranks to blame, how that is known); no rank when it cannot be known."""
    changed = [r for r, entry in wrong.items() if any(not case["input_ok"] for case in entry["wrong"])]
    if changed and len(changed) < len(entries):
        return changed, "the numbers that it put in were changed in its own memory"
    if op in _PARTS and (senders := _senders(list(reports.facts), wrong)):
        return senders, "its part is wrong wherever it is received"
    if len(wrong) < len(entries):
        right = [rank for rank in entries if rank not in wrong]
        return sorted(wrong), f"{reports.named(right)} got the right result from the same operation"
    blamed = {tuple(case["blamed"]) for entry in wrong.values() for case in entry["wrong"] if case.get("blamed")}
    if len({rank for rank, _ in blamed}) == 1:
        rank, factor = next(iter(blamed))
        how = {-1.0: "left out", 1.0: "counted twice"}.get(factor, f"counted {1 + factor:g} times")
        return [list(reports.facts)[rank]], f"all ranks have the same wrong sum: its numbers are {how}"
    if suspects := _in_groups(reports, op):
        return suspects, "all have a wrong sum; in small groups the sum is wrong exactly where it takes part"
    if len(entries) == 2:
        return [], "both ranks have a wrong sum, and of two ranks it cannot be told whose numbers are wrong"
    return [], "all ranks have a wrong sum, and smaller groups do not single one out"


def _senders(order: Sequence[int], wrong: Mapping[int, Any]) -> list[int]:
    """Return ranks whose part is wrong at every other rank. `order`: of the ranks, as the parts are."""
    seen = {
        rank: {order[part] for case in entry["wrong"] for part in case.get("parts", ()) if part < len(order)}
        for rank, entry in wrong.items()
    }
    return [s for s in order if len(order) > 2 and all(s in seen.get(rank, set()) for rank in order if rank != s)]


def _in_groups(reports: Reports, op: str) -> list[int]:
    """Return ranks that are wrong in all their groups, while everybody else is right in at least one."""
    groups = {
        tuple(each["ranks"]): each["wrong"] or any(_same(other, each) for other in report["small_groups"])
        for report in reports.at_work.values()
        for each in report["small_groups"]
        if each["op"] == op
    }
    for report in reports.at_work.values():
        for each in report["small_groups"]:
            if each["op"] == op and each["wrong"]:
                groups[tuple(each["ranks"])] = True
    members = {rank for group in groups for rank in group}
    always = [r for r in sorted(members) if all(bad for group, bad in groups.items() if r in group)]
    return always if always and len(always) * 2 <= len(members) else []


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a["op"] == b["op"] and a["ranks"] == b["ranks"] and a["wrong"]


def _again(again: Sequence[Mapping[str, Any]], comes_again: bool) -> str:
    if not again:
        return "it was not tried again"
    if comes_again:
        return f"it came again when tried {again[0]['n_repeats']} more times"
    return f"it did not come again in {again[0]['n_repeats']} tries: a fault that comes and goes"


def _fix(reports: Reports, ranks: Sequence[int]) -> tuple[str, ...]:
    tools = BY_BACKEND.get(reports.backend)
    return (f"ssh {reports.host(ranks[0])} '{tools.errors}'",) if ranks and tools else ()
