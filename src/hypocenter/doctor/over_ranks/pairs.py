"""Send and receive between each two ranks: a link that changes what goes over it, or lets nothing through."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, joined

CODE, TITLE = "comm.pairs", "each two ranks can talk"
SLOW = 4.0  # times slower than the others, in both directions, in the quickest of three tries: a link to look at
_LEAST_SLOW_S = 0.003  # of one exchange: a loaded machine takes that from anybody


def judge(reports: Reports) -> list[Check]:
    """One check of content and silence, one of speed where there is something to say."""
    told = {(int(p), r): each for r, report in reports.at_work.items() for p, each in report["pairs"].items()}
    done = {link: each for link, each in told.items() if "n_wrong" in each}
    if not told:
        return []
    wrong = {link: each for link, each in done.items() if each["n_wrong"]}
    if wrong:
        return [_wrong(reports, wrong, done)]
    lost = {link: each for link, each in told.items() if each.get("error") == "timeout"}
    if lost:
        return [_lost(reports, lost)]
    if any("error" in each for each in told.values()) or not done:
        return []  # ended by another rank: that is told of by itself
    rates = [each["gib_s"] for each in done.values()]
    return [
        Check(
            code=CODE, area="communication", title=TITLE, status="ok",
            what=f"{len(done) // 2} pairs{_how(reports, len(done) // 2)}, both ways at once: {median(rates):.2f} GiB/s in the middle, "
            f"{min(rates):.2f} at least",
            evidence={"n_pairs": len(done) // 2, "median_gib_s": median(rates), "least_gib_s": min(rates)},
        ),
        *_slow(reports, done),
    ]  # fmt: skip


def _how(reports: Reports, n: int) -> str:
    count = len(reports.at_work)
    return "" if n == count * (count - 1) // 2 else " (at distances 1, 2, 4, …: not all pairs)"


def _wrong(reports: Reports, wrong: Mapping[tuple[int, int], Any], done: Mapping[tuple[int, int], Any]) -> Check:
    rank, who = _common(wrong, done)
    (source, target), each = next(iter(wrong.items()))
    whom = f"what rank {rank} {who}" if rank is not None else joined([f"{a} → {b}" for a, b in list(wrong)[:6]])
    return Check(
        code=CODE, area="communication", title=TITLE, status="problem",
        what=f"{whom} arrives changed: {each['n_wrong']:,} of {each['n']:,} numbers from rank {source} to rank {target}",
        why="the path, a network card or the memory of this rank changes data; training would go on with it",
        rank=rank, host=reports.host(rank) if rank is not None else "",
        evidence={"links": [[a, b, e["n_wrong"]] for (a, b), e in list(wrong.items())[:64]]},
    )  # fmt: skip


def _common(bad: Mapping[tuple[int, int], Any], done: Mapping[tuple[int, int], Any]) -> tuple[int | None, str]:
    """The one rank that all bad links start from, or end at; None when that is not one, or not all of its links."""
    for end, what in ((0, "sends"), (1, "receives")):
        ranks = {link[end] for link in bad}
        if len(ranks) == 1:
            rank = next(iter(ranks))
            if len(bad) > 1 and sum(link[end] == rank for link in done) == len(bad):
                return rank, what
    return None, ""


def _lost(reports: Reports, lost: Mapping[tuple[int, int], Any]) -> Check:
    pairs = sorted({(min(link), max(link)) for link in lost})
    ranks = [set(pair) for pair in pairs]
    common = set.intersection(*ranks) if len(ranks) > 1 else set[int]()
    rank = common.pop() if len(common) == 1 else None
    first = next(iter(lost.values()))
    return Check(
        code=CODE, area="communication", title=TITLE, status="problem",
        what=(f"rank {rank} does not answer: " if rank is not None else "")
        + f"no answer between ranks {joined([f'{a} and {b}' for a, b in pairs[:6]])} ({first['text']})",
        why="the other pairs were not reached any more, or are well" if rank is None else "every pair with it is silent",
        rank=rank, host=reports.host(rank) if rank is not None else "",
        evidence={"pairs": [list(pair) for pair in pairs[:64]]},
    )  # fmt: skip


def _slow(reports: Reports, done: Mapping[tuple[int, int], Any]) -> list[Check]:
    """A pair, or a rank in all of its pairs, that is clearly slower than the rest: of one host, or across hosts."""
    found: list[Check] = []
    for across in (False, True):
        rates = {
            link: float(each["gib_s"]) for link, each in done.items()
            if (reports.host(link[0]) != reports.host(link[1])) == across
        }  # fmt: skip
        pairs = {
            link: max(rate, rates.get((link[1], link[0]), 0.0)) for link, rate in rates.items() if link[0] < link[1]
        }
        if len(pairs) < 3:
            continue
        usual = median(pairs.values())
        slow = {
            p: rate for p, rate in pairs.items()
            if rate * SLOW < usual and done[p]["n"] * 8 / 2**30 / rate > _LEAST_SLOW_S
        }  # fmt: skip
        if not slow or len(slow) * 2 > len(pairs):
            continue
        of_rank = [r for r in reports.at_work if all(p in slow for p in pairs if r in p) and any(r in p for p in pairs)]
        rank = of_rank[0] if len(of_rank) == 1 else None
        worst = min(slow, key=lambda p: slow[p])
        whom = f"{reports.named([rank])}, with every other," if rank is not None else f"ranks {worst[0]} and {worst[1]}"
        found.append(
            Check(
                code="comm.slow-link",
                area="communication",
                title="all links are about as fast",
                status="warning",
                what=f"{whom} exchange {slow[worst]:.3f} GiB/s, others {usual:.2f}",
                why="one slow link slows every collective that goes over it; the quickest of three tries is counted",
                rank=rank,
                host=reports.host(rank) if rank is not None else "",
                evidence={"slow": [[*p, rate] for p, rate in list(slow.items())[:64]], "median_gib_s": usual},
            )  # fmt: skip
        )
    return found
