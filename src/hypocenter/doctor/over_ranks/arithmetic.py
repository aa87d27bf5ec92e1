"""What the burn on each device found, and whether equal devices computed equal bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, check

CODE = "arithmetic.burn"
TITLE = "matmul and sums"

order = 9  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Judge each device by itself, then compare devices with each other."""
    burns = {
        rank: report["arithmetic"] for rank, report in reports.at_work.items() if report["arithmetic"].get("tests")
    }
    own = [
        check
        for rank, burn in burns.items()
        for check in problems_of(burn, rank, reports.host(rank), reports.named([rank]))
    ]
    among = _among(reports, {rank: burn for rank, burn in burns.items() if rank not in {check.rank for check in own}})
    return [*own, *among, *([] if own else [passed(burns)] if burns else [])]


def problems_of(burn: Mapping[str, Any], rank: int | None, host: str, who: str) -> list[Check]:
    """Return what is wrong with one device: values outside their bounds, and repeats that differ."""
    return [*_beyond_bounds(burn, rank, host, who), *_unsteady(burn, rank, host, who)]


def _beyond_bounds(burn: Mapping[str, Any], rank: int | None, host: str, who: str) -> list[Check]:
    """A device computes values that no rounding explains.

    What it means
        A defective card, its memory, or a kernel with a bug. In training it is a loss that jumps, or a run that is
        a little worse than it should be.

    How it is decided
        Products of matrices, sums, softmax and layer norm are done in float32, bfloat16 and float16 and compared
        with float64. The limit is the a priori bound of rounding errors for any order of the operations (Higham,
        Accuracy and Stability of Numerical Algorithms); products of whole numbers must be exact to the bit.

    What to do
        Test the card (ECC counters, dcgmi diag); look for Xid or machine-check messages of the kernel.

    When it is wrong
        When a library computes in a reduced format on purpose, against the settings that are made for this test.
    """
    bad = [test for test in burn["tests"] if test["n_wrong"]]
    if not bad:
        return []
    test = bad[0]
    first = test["first"]
    limit = "to the bit" if first["limit"] is None else f"within {first['limit']:.2e}"
    return [
        check(
            CODE,
            TITLE,
            "problem",
            f"{who} computes wrong: {test['name']} in {test['dtype']}, {test['n_wrong']:,} of "
            f"{test['n']:,} values; "
            f"element {first['index']} is {first['actual']:.9g}, exact is {first['expected']:.9g} ({limit})",
            "no order of the operations and no rounding gives this: the device, its memory or its library "
            "is at fault" + (f"; also {', '.join(_spelled(t) for t in bad[1:])}" if bad[1:] else ""),
            _fix(burn),
            rank=rank,
            host=host,
            evidence={"device": burn["device"], "tests": bad},
        )
    ]


def _unsteady(burn: Mapping[str, Any], rank: int | None, host: str, who: str) -> list[Check]:
    """The same computation gives other bits each time.

    What it means
        A fault that comes and goes: heat, power, a weak memory cell.

    How it is decided
        Every test of the burn is repeated for half a second (three on accelerators), and each result compared with the
        first one, bit by bit.

    What to do
        Test the card under load for longer; take it out.

    When it is wrong
        When every device does it: then a kernel adds in no fixed order, which is a property of the library.
    """
    unsteady = [test for test in burn["tests"] if test["n_unequal"]]
    if not unsteady:
        return []
    test = max(unsteady, key=lambda t: t["n_unequal"])
    return [
        check(
            "arithmetic.repeat",
            "repeated bits",
            "problem",
            f"{who} computes differently each time: {_spelled(test)}, {test['n_unequal']} of "
            f"{test['n_repeats'] - 1} repeats differ from the first",
            "the same kernel on the same numbers gives the same bits: a fault that comes and goes, or, if every "
            "device does it, a kernel that adds in no fixed order",
            _fix(burn),
            rank=rank,
            host=host,
            evidence={"device": burn["device"], "tests": unsteady},
        )
    ]


def passed(burns: Mapping[int, Any], host: str = "") -> Check:
    """Return the check for devices that are well."""
    burn = next(iter(burns.values()))
    worst = max((t["worst"] for b in burns.values() for t in b["tests"] if t["worst"] is not None), default=0.0)
    n_repeats = sum(t["n_repeats"] for b in burns.values() for t in b["tests"])
    formats = list(dict.fromkeys(t["dtype"] for t in burn["tests"]))
    names = list(dict.fromkeys(t["name"] for t in burn["tests"]))
    skipped = sorted({name for b in burns.values() for name, _ in b["skipped"]})
    where = f"{len(burns)} ranks" if len(burns) > 1 else burn["device"]
    return check(
        CODE,
        TITLE,
        "ok",
        f"{where}: {', '.join(names)} in {', '.join(formats)}, {n_repeats:,} results, at most {100 * worst:.0f} % "
        "of the error that rounding allows, repeats equal to the bit"
        + (f"; not checked: {', '.join(skipped)}" if skipped else ""),
        host=host,
        evidence={"worst": worst, "n_results": n_repeats, "skipped": skipped},
    )


def _among(reports: Reports, burns: Mapping[int, Any]) -> list[Check]:
    """Ranks with the same hardware and library compute different bits.

    What it means
        The same kernel on the same numbers gives the same bits on every card of a kind. One that does not is
        defective, even if its error is within what rounding allows.

    How it is decided
        Digests of the results are compared among ranks with the same name of device, torch and number of threads.
        The majority is taken to be right; without one, nobody is named.

    What to do
        Take that card out, and test it.

    When it is wrong
        When a library chooses its kernels by measuring, or the hosts' processors differ in a way that their name
        does not tell.
    """
    found: list[Check] = []
    groups: dict[str, list[int]] = {}
    for rank, burn in burns.items():
        groups.setdefault(burn["group"], []).append(rank)
    n_compared = sum(len(ranks) for ranks in groups.values() if len(ranks) > 1)
    for name, ranks in groups.items():
        marks = {rank: tuple((t["name"], t["dtype"], t["digest"]) for t in burns[rank]["tests"]) for rank in ranks}
        if len(set(marks.values())) > 1:
            found.append(_differ(reports, name, marks))
    if found or n_compared < 2:
        return found
    return [
        check(
            "arithmetic.among-ranks",
            "bits over ranks",
            "ok",
            f"{n_compared} ranks with equal hardware have the same digests",
            evidence={"groups": groups},
        )
    ]


def _differ(reports: Reports, name: str, marks: Mapping[int, tuple[tuple[str, str, str], ...]]) -> Check:
    usual, count = Counter(marks.values()).most_common(1)[0]
    others = [rank for rank, mark in marks.items() if mark != usual]
    is_known = count * 2 > len(marks)
    rank = others[0] if is_known and len(others) == 1 else None
    first = next(
        (
            f"{mine[0]} in {mine[1]}"
            for mark in marks.values()
            for mine, theirs in zip(mark, usual, strict=False)
            if mine != theirs
        ),
        "a test that not all have",
    )
    whom = f"{reports.named(marks)} compute different bits, and which of them is right cannot be told"
    if is_known:
        verb = "computes" if len(others) == 1 else "compute"
        whom = f"{reports.named(others)} of {len(marks)} {verb} other bits than the rest"
    return check(
        "arithmetic.among-ranks",
        "bits over ranks",
        "problem",
        f"{whom}: {first}",
        f"the same hardware and library ({name}) must give the same bits; "
        + ("the majority is taken to be right" if is_known else "there is no majority"),
        rank=rank,
        host=reports.host(rank) if rank is not None else "",
        evidence={"digests": {str(r): [list(each) for each in mark] for r, mark in list(marks.items())[:32]}},
    )


def _spelled(test: Mapping[str, Any]) -> str:
    return f"{test['name']} in {test['dtype']}"


def _fix(burn: Mapping[str, Any]) -> tuple[str, ...]:
    if burn["kind"] == "cuda":
        return ("nvidia-smi -q -d ECC,PAGE_RETIREMENT,ROW_REMAPPER", "dcgmi diag -r 3", "dmesg | grep -i xid")
    return ("npu-smi info -t ecc -i 0",) if burn["kind"] == "npu" else ("dmesg | grep -i -E 'mce|machine check|edac'",)
