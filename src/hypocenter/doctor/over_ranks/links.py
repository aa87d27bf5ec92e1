"""Sockets between hosts, and what each host's own name means to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, check, joined

CODE, TITLE = "comm.links", "sockets"
ALL_PAIRS = 64  # ranks; as in hypocenter.examine.links

order = 4  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Judge the names of the hosts, and the links between ranks."""
    return [*_names(reports), *_sockets(reports)]


def _sockets(reports: Reports) -> list[Check]:
    """A rank cannot open a socket to another one.

    What it means
        Groups are set up over sockets, also where the data goes another way later. A firewall or a wrong interface
        lets the set-up hang.

    How it is decided
        Each rank listens on the address by which it reaches the store, or of GLOO_SOCKET_IFNAME or
        NCCL_SOCKET_IFNAME, and calls the others: all of them in jobs of up to 64 ranks, else those at the distances
        1, 2, 4, and so on.

    What to do
        Choose the interface that all hosts share, and open all ports between them.

    When it is wrong
        When a firewall lets only some ports through that the libraries were told to use.
    """
    tried = {(r, int(p)): each for r, report in reports.at_work.items() for p, each in report["links"].items()}
    bad = {link: each for link, each in tried.items() if "error" in each}
    times = sorted(each["ms"] for each in tried.values() if "ms" in each)
    if not tried:
        return []
    if not bad:
        if not times:
            return []
        return [
            check(
                CODE,
                TITLE,
                "ok",
                f"{len(times)} connections made ({_which(reports, len(times))}), "
                f"{times[len(times) // 2]:.2f} ms in the middle, {times[-1]:.2f} ms at most",
                evidence={"n": len(times), "median_ms": times[len(times) // 2], "slowest_ms": times[-1]},
            )
        ]
    by_target = _blamed(reports, bad)
    (source, target), each = next(iter(bad.items()))
    return [
        check(
            CODE,
            TITLE,
            "problem",
            f"{len(bad)} of {len(tried)} connections failed: {by_target}; rank {source} to rank {target} at "
            f"{each['where']}: {each['error']}",
            "a firewall, a wrong interface or a missing route between these hosts: making a group would hang",
            (
                "ip -brief address  # then choose the interface that all hosts share:",
                "export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0 HCCL_SOCKET_IFNAME=eth0",
            ),
            rank=None,
            evidence={"failed": [[a, b, e["error"]] for (a, b), e in list(bad.items())[:64]]},
        )
    ]


def _which(reports: Reports, n: int) -> str:
    count = len(reports.facts)
    if n == count * (count - 1):
        return "every rank to every other"
    return "ranks at distances 1, 2, 4, …: not all pairs" if count > ALL_PAIRS else "not every report came"


def _blamed(reports: Reports, bad: Mapping[tuple[int, int], Any]) -> str:
    """Say in the fewest words what failed: hosts that nobody reaches, else links."""
    others = {rank: set(report["links"]) for rank, report in reports.at_work.items()}
    for target in {b for _, b in bad}:
        callers = [r for r in others if str(target) in others[r]]
        if len(callers) > 1 and all((r, target) in bad for r in callers):
            return f"nobody reaches {reports.named([target])}"
    links = [f"{a} → {b}" for a, b in list(bad)[:6]]
    return joined(links) + (f" and {len(bad) - 6} more" if len(bad) > 6 else "")


def _names(reports: Reports) -> list[Check]:
    """A host's own name means the loopback to itself.

    What it means
        gloo listens where the host's name points, unless it is given an interface. With an entry such as `127.0.1.1
        HOST` in /etc/hosts, the other hosts are told to connect to themselves.

    How it is decided
        Each rank resolves its own host name; looked at only where ranks are on several hosts.

    What to do
        Give the interface in GLOO_SOCKET_IFNAME, or mend /etc/hosts.

    When it is wrong
        When GLOO_SOCKET_IFNAME is set already.
    """
    hosts = {reports.host(rank) for rank in reports.facts}
    if len(hosts) < 2:
        return []
    bad = {
        reports.host(rank): str(known.get("name_is", ""))
        for rank, known in sorted(reports.facts.items())
        if str(known.get("name_is", "")).startswith(("127.", "::1", "error"))
    }
    if not bad:
        return []
    host, meaning = next(iter(bad.items()))
    return [
        check(
            "comm.host-name",
            "host names",
            "warning",
            f"on {joined(list(bad)[:8])} the host's own name is {meaning}",
            "gloo listens where the host's name points unless an interface is given: others would not reach it",
            ("export GLOO_SOCKET_IFNAME=eth0  # the interface that all hosts share",),
            host=host,
            evidence={"names": bad},
        )
    ]
