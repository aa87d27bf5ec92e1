"""The reports of all ranks, as the judges read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter.doctor.answer import Check, CheckStatus

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """What the ranks reported, by rank."""

    n_ranks: int
    of: Mapping[int, Report]  # reports, of the ranks that sent one, in their order: so are parts of results
    facts: Mapping[int, Mapping[str, Any]]  # of the ranks that came: host, device, versions
    silent: Mapping[int, str]  # came, and sent no report: what they were last seen doing
    late: Sequence[int] = ()
    dead: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)  # their child ended before it came
    why_gloo: str = ""
    backend: str = ""
    expected_hosts: Mapping[int, str] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks that were not there when the roll was called."""
        return tuple(rank for rank in range(self.n_ranks) if rank not in self.facts)

    @property
    def at_work(self) -> dict[int, Report]:
        """The reports of the ranks whose process lived to the end."""
        return {rank: report for rank, report in self.of.items() if "died" not in report}

    def host(self, rank: int) -> str:
        """Return the host of a rank; empty when unknown."""
        return str(self.facts.get(rank, {}).get("host", "")) or self.expected_hosts.get(rank, "")

    def named(self, ranks: Iterable[int]) -> str:
        """Name ranks with their hosts: "rank 2 (gpu07)", "ranks 0, 1 (gpu07) and 4 (gpu08)"."""
        return named(ranks, {rank: self.host(rank) for rank in self.facts} | dict(self.expected_hosts))


def of_message(message: Mapping[str, Any], expected_hosts: Mapping[int, str]) -> Reports:
    """Read the reports from the message of the rank that leads."""
    roster = message["roster"]
    return Reports(
        n_ranks=message["n_ranks"],
        of={int(each["rank"]): each for each in sorted(message["reports"], key=lambda each: each["rank"])},
        facts={rank: roster["facts"][str(rank)] for rank in roster["ranks"]},
        silent={int(rank): at for rank, at in message["silent"].items()},
        late=message["late"],
        dead={int(rank): died for rank, died in message.get("dead", {}).items()},
        why_gloo=roster.get("why_gloo", ""),
        backend=roster.get("backend", ""),
        expected_hosts=expected_hosts,
    )


def check(
    code: str, title: str, status: CheckStatus, what: str, why: str = "", fix: tuple[str, ...] = (), *,
    rank: int | None = None, host: str | None = None, evidence: dict[str, Any] | None = None,
) -> Check:  # fmt: skip
    """Return a check of the area that its code begins with: `arithmetic.burn`, `comm.links`."""
    return Check(
        code=code, area="arithmetic" if code.startswith("arithmetic.") else "communication", title=title,
        status=status, what=what, why=why, fix=fix, rank=rank, host=host, evidence=evidence or {},
    )  # fmt: skip


def named(ranks: Iterable[int], hosts: Mapping[int, str]) -> str:
    """Name ranks in runs, with hosts where they are known and there are several."""
    listed = sorted(ranks)
    word = "rank" if len(listed) == 1 else "ranks"
    by_host: dict[str, list[int]] = {}
    for rank in listed:
        by_host.setdefault(hosts.get(rank, ""), []).append(rank)
    parts = [runs(members) + (f" ({host})" if host else "") for host, members in by_host.items()]
    if len(set(hosts.values())) < 2:
        parts = [runs(listed)]
    return f"{word} {joined(parts)}"


def last_words(tail: Sequence[str]) -> str:
    """Return the innermost line of a crash in what a process printed before it ended, else the last line."""
    tail = [line for line in tail if not line.startswith("frame #")]  # of C++, without names
    crashed = next((n for n, line in enumerate(tail) if line.startswith("Current thread")), None)
    if crashed is not None and crashed + 1 < len(tail):
        return f"it was in {tail[crashed + 1].strip()[:280]}"
    return tail[-1].strip()[:300] if tail else "it said nothing"


def runs(ranks: Sequence[int]) -> str:
    """Write numbers in runs: "0-3, 7"."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][-1] + 1:
            found[-1].append(rank)
        else:
            found.append([rank])
    spelled = [", ".join(map(str, run)) if len(run) < 3 else f"{run[0]}-{run[-1]}" for run in found]
    return ", ".join(spelled[:20]) + (f" and {len(spelled) - 20} more" if len(spelled) > 20 else "")


def joined(parts: Sequence[str]) -> str:
    """Join words: "a, b and c"."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}" if parts else ""
