"""How fast the collectives are, and a rank that holds the others up.

In a collective all take as long as the slowest, so only times that a rank spends by itself are compared: starting the
operation, and a product of matrices on its own device. Time that it waited for a core is taken off: on a loaded machine
that hits anybody. It is named only when its *quickest* repeat is far slower than what is usual for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.judgement import BY_BACKEND
from hypocenter.doctor.over_ranks.reports import Reports, check

TIMES = 3.0  # slower than the others' usual time: one device of a kind differs from the next by a few per cent
SPREADS = 8.0  # median absolute deviations of the others: of a normal distribution, 5 standard deviations
LEAST_REPEATS = 5
_LEAST_EXCESS_MS = {"start": 2.0, "matmul": 1.0}  # below, a timer and a scheduler may do it

order = 7  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Judge bandwidth, and find slow ranks."""
    timed = {rank: report["pace"] for rank, report in reports.at_work.items() if report["pace"]}
    slow = _slow_ranks(reports, timed)
    return [*_bandwidth(reports, timed), *slow]


def clearly_slower(mine: Sequence[float], others: Sequence[Sequence[float]], least_excess: float) -> bool:
    """Return whether the quickest of `mine` is slower than the others by a ratio, their spread and an amount."""
    pooled = [value for each in others for value in each]
    if len(mine) < LEAST_REPEATS or len(pooled) < LEAST_REPEATS:
        return False
    usual = median(pooled)
    spread = median(abs(value - usual) for value in pooled)
    return min(mine) > max(TIMES * usual, usual + SPREADS * spread, usual + least_excess)


def _bandwidth(reports: Reports, timed: Mapping[int, Any]) -> list[Check]:
    """How fast the collectives are.

    What it means
        Bytes on the busiest wire per second, as nccl-tests count them (bus bandwidth): comparable between numbers
        of ranks, and with what the hardware should give.

    How it is decided
        The quickest of seven repeats of 4 MiB (128 MiB on accelerators).

    What to do
        Compare it with the link: a small part of it means that data goes another way than you think.

    When it is wrong
        It is a short look on a machine that may be busy, not a benchmark.
    """
    rates: dict[str, float] = {}
    for pace in timed.values():
        for op, each in pace.items():
            rates[op] = max(rates.get(op, 0.0), each["bus_gib_s"])
    if not rates:
        return []
    n_bytes = next(iter(next(iter(timed.values())).values()))["n_bytes"]
    return [
        check(
            "comm.bandwidth",
            "bandwidth",
            "ok",
            f"{', '.join(f'{op} {rate:.2f}' for op, rate in rates.items())} GiB/s on the busiest wire "
            f"({n_bytes >> 20} MiB, {reports.backend}, quickest of 7)",
            evidence={
                "bus_gib_s": rates,
                "n_bytes": n_bytes,
                "total_ms": {
                    str(r): {op: median(e["total_ms"]) for op, e in pace.items()} for r, pace in timed.items()
                },
            },
        )
    ]


def _slow_ranks(reports: Reports, timed: Mapping[int, Any]) -> list[Check]:
    """One rank holds all others up.

    What it means
        In a collective all take as long as the slowest: a throttled card, a core that is shared, something that
        runs on one host only.

    How it is decided
        Only times that a rank spends by itself are compared: starting a collective, and a product of matrices on
        its own device (with the same device elsewhere). Time that it waited for a core is taken off where Linux
        tells it. Its *quickest* repeat must be three times what is usual for the others, beyond eight times their
        spread, and milliseconds longer.

    What to do
        Look at clocks, heat and power of the card, and at what else runs on that host.

    When it is wrong
        When another job shares the device for the whole of the examination.
    """
    own: dict[str, dict[int, list[float]]] = {}
    for rank, pace in timed.items():
        for op, each in pace.items():
            own.setdefault(f"start of {op}", {})[rank] = _net(each["launch_ms"], each["core_wait_ms"])
    found = [*_of_matmul(reports)]
    by_rank: dict[int, list[str]] = {}
    figures: dict[int, tuple[float, float]] = {}
    for what, times in own.items():
        for rank, mine in times.items():
            others = [each for other, each in times.items() if other != rank]
            if clearly_slower(mine, others, _LEAST_EXCESS_MS["start"]):
                by_rank.setdefault(rank, []).append(what.removeprefix("start of "))
                figures.setdefault(rank, (min(mine), median(v for each in others for v in each)))
    for rank, ops in by_rank.items():
        mine_ms, theirs_ms = figures[rank]
        found.append(
            _check(
                reports,
                rank,
                f"{reports.named([rank])} is slow: it takes {mine_ms:.1f} ms to start {_first(ops)}, others "
                f"{theirs_ms:.2f} ms",
                "the others wait for it in every step; time that it waited for a core is not counted",
                {"ops": ops, "rank_ms": mine_ms, "others_ms": theirs_ms},
            )
        )
    if found or not timed:
        return found
    n = len(timed)
    return [
        check(
            "comm.slow-rank",
            "pace of ranks",
            "ok",
            f"no rank of {n} takes {TIMES:g} times as long as the others by itself",
            evidence={
                "matmul_ms": {
                    str(r): min(report["arithmetic"]["matmul_ms"])
                    for r, report in reports.at_work.items()
                    if report["arithmetic"].get("matmul_ms")
                }
            },
        )
    ]


def _of_matmul(reports: Reports) -> list[Check]:
    by_name: dict[str, dict[int, list[float]]] = {}
    for rank, report in reports.at_work.items():
        burn = report["arithmetic"]
        if burn.get("matmul_ms"):
            by_name.setdefault(burn["device"], {})[rank] = _net(burn["matmul_ms"], burn["core_wait_ms"])
    found: list[Check] = []
    for name, times in by_name.items():
        for rank, mine in times.items():
            others = [each for other, each in times.items() if other != rank]
            if clearly_slower(mine, others, _LEAST_EXCESS_MS["matmul"]):
                usual = median(v for each in others for v in each)
                found.append(
                    _check(
                        reports,
                        rank,
                        f"{reports.named([rank])} computes slowly: {min(mine):.2f} ms for a matmul, "
                        f"others {usual:.2f} ms "
                        f"on the same device ({name})",
                        "a device that is throttled (heat, power), shared with another job, or defective",
                        {"rank_ms": min(mine), "others_ms": usual},
                    )
                )
    return found


def _check(reports: Reports, rank: int, what: str, why: str, evidence: dict[str, Any]) -> Check:
    fix = (BY_BACKEND[reports.backend].pace,) if reports.backend in BY_BACKEND else ()
    return check(
        "comm.slow-rank",
        "pace of ranks",
        "problem",
        what,
        why,
        fix,
        rank=rank,
        host=reports.host(rank),
        evidence=evidence,
    )


def _net(times_ms: Sequence[float], lost_ms: Sequence[float]) -> list[float]:
    return [max(0.0, time - lost) for time, lost in zip(times_ms, lost_ms, strict=True)]


def _first(ops: Sequence[str]) -> str:
    return ops[0] if len(ops) == 1 else f"{ops[0]} (also {', '.join(ops[1:])})"
