"""Send and receive between each two ranks: a link that changes what goes over it, or lets nothing through."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.links import ALL_PAIRS
from hypocenter.doctor.over_ranks.reports import Reports, check, joined
from hypocenter.in_words import counted

CODE, TITLE = "comm.pairs", "pairs of ranks"
SLOW = 4.0  # times slower than the others, in the quickest of six tries at two times: a link to look at
_LEAST_SLOW_S = 0.003  # of one exchange: a loaded machine takes that from anybody

order = 5  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """What one rank sends to another arrives changed, or not at all.

    What it means
        A cable, a network card, a switch or memory on the way is bad. Training goes on with what it gets.

    How it is decided
        Each two ranks exchange a MiB (16 MiB on accelerators) whose every bit is known, both ways at once; above 64
        ranks only those whose numbers differ in one bit. A rank is named when all of its links are bad and no
        others are.

    What to do
        Take the host or the cable out, and look at the counters of the card.

    When it is wrong
        A missing answer can also be the fault of the library's set-up: see what NCCL says.
    """
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
        check(
            CODE,
            TITLE,
            "ok",
            f"{counted(len(done) // 2, 'pair')}{_how(reports, len(done) // 2)}, both ways at once: "
            f"{median(rates):.2f} GiB/s in the middle, {min(rates):.2f} at least",
            evidence={"n_pairs": len(done) // 2, "median_gib_s": median(rates), "least_gib_s": min(rates)},
        ),
        *_slow(reports, done),
    ]


def _how(reports: Reports, n: int) -> str:
    count = len(reports.facts)
    if n == count * (count - 1) // 2:
        return ""
    return " (at distances 1, 2, 4, …: not all pairs)" if count > ALL_PAIRS else f" of {count * (count - 1) // 2}"


def _wrong(reports: Reports, wrong: Mapping[tuple[int, int], Any], done: Mapping[tuple[int, int], Any]) -> Check:
    rank, who = _common(wrong, done)
    (source, target), each = next(iter(wrong.items()))
    whom = f"what rank {rank} {who}" if rank is not None else joined([f"{a} → {b}" for a, b in list(wrong)[:6]])
    return check(
        CODE,
        TITLE,
        "problem",
        f"{whom} arrives changed: {each['n_wrong']:,} of {each['n']:,} numbers from rank {source} to rank {target}",
        "the path, a network card or memory changes data; training would go on with it",
        rank=rank,
        host=reports.host(rank) if rank is not None else "",
        evidence={"links": [[a, b, e["n_wrong"]] for (a, b), e in list(wrong.items())[:64]]},
    )


def _common(bad: Mapping[tuple[int, int], Any], done: Mapping[tuple[int, int], Any]) -> tuple[int | None, str]:
    """Return the rank that all bad links start from, or end at, if all its links are bad; else None."""
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
    return check(
        CODE,
        TITLE,
        "problem",
        (f"rank {rank} does not answer: " if rank is not None else "")
        + f"no answer between ranks {joined([f'{a} and {b}' for a, b in pairs[:6]])} ({first['text']})",
        "other pairs were not reached any more, or are well" if rank is None else "every pair with it is silent",
        rank=rank,
        host=reports.host(rank) if rank is not None else "",
        evidence={"pairs": [list(pair) for pair in pairs[:64]]},
    )


def _slow(reports: Reports, done: Mapping[tuple[int, int], Any]) -> list[Check]:
    """A link is several times slower than the others.

    What it means
        One slow link slows every collective that goes over it: a card on the wrong PCIe slot, a cable that fell
        back to a lower rate, a route through another socket.

    How it is decided
        The quickest of six exchanges at two times, against the median of all pairs of the same sort (within a host,
        or across hosts); four times slower, and 3 ms longer. Without accelerators pairs of one host are left out:
        there a slow link is a busy core.

    What to do
        Compare `nvidia-smi topo -m`, `ibstat` and `ethtool` with those of a good host.

    When it is wrong
        When the hosts are meant to have different networks.
    """
    found: list[Check] = []
    for across in (True,) if reports.backend == "gloo" else (False, True):
        rates = {
            link: float(each["gib_s"])
            for link, each in done.items()
            if (reports.host(link[0]) != reports.host(link[1])) == across
        }
        pairs = {
            link: max(rate, rates.get((link[1], link[0]), 0.0)) for link, rate in rates.items() if link[0] < link[1]
        }
        if len(pairs) < 3:
            continue
        usual = median(pairs.values())
        slow = {
            p: rate
            for p, rate in pairs.items()
            if rate * SLOW < usual and done[p]["n"] * 8 / 2**30 / rate > _LEAST_SLOW_S
        }
        if not slow or len(slow) * 2 > len(pairs):
            continue
        of_rank = [r for r in reports.at_work if all(p in slow for p in pairs if r in p) and any(r in p for p in pairs)]
        rank = of_rank[0] if len(of_rank) == 1 else None
        worst = min(slow, key=lambda p: slow[p])
        whom = f"{reports.named([rank])}, with every other," if rank is not None else f"ranks {worst[0]} and {worst[1]}"
        found.append(
            check(
                "comm.slow-link",
                "speed of links",
                "warning",
                f"{whom} exchange {slow[worst]:.3f} GiB/s, others {usual:.2f}",
                "one slow link slows every collective that goes over it; the quickest of six tries is counted",
                rank=rank,
                host=reports.host(rank) if rank is not None else "",
                evidence={"slow": [[*p, rate] for p, rate in list(slow.items())[:64]], "median_gib_s": usual},
            )
        )
    return found
