"""Did every rank come to the store? One that did not is named; no group is needed to see that."""

from __future__ import annotations

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.reports import Reports, check, joined, last_words

CODE, TITLE = "comm.rendezvous", "rendezvous"

order = 1  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """A rank of the job did not come to where all meet.

    What it means
        A collective waits for every rank. A job of which one process did not start, or started on a host that
        cannot reach the others, hangs at its first collective without a word.

    How it is decided
        Every rank writes to the job's store (that of torchrun's agent, or of rank 0) when it begins. The roll is
        called when all have written, or when 70 % of --timeout is over. No process group is needed for that, so a
        missing rank is named although none could be made. The examination goes on among those that came.

    What to do
        Look at the host of the missing rank: is the process there, can it reach MASTER_ADDR:MASTER_PORT?

    When it is wrong
        When a rank starts more than 70 % of --timeout after the first one: give a longer --timeout.
    """
    n, missing = reports.n_ranks, reports.missing
    if not missing:
        hosts = sorted({reports.host(rank) for rank in reports.facts})
        where = f"on {hosts[0]}" if len(hosts) == 1 else f"on {len(hosts)} hosts"
        return [check(CODE, TITLE, "ok", f"all {n} ranks came, {where}", evidence={"n_ranks": n, "hosts": hosts})]
    came = sorted(reports.facts)
    never = [rank for rank in missing if rank not in reports.late and rank not in reports.dead]
    told: list[str] = []
    if never:
        told.append(f"{reports.named(never)} of {n} never came")
    if reports.late:
        told.append(f"{reports.named(reports.late)} came too late")
    if reports.dead:
        told.append(f"the examination of {reports.named(reports.dead)} ended before it came: {_death(reports)}")
    mates = _mates(reports)
    return [
        check(
            CODE,
            TITLE,
            "problem",
            f"{joined(told)}; {reports.named(came)} did{mates}",
            "a collective waits for every rank: training would hang at its first one, without a word",
            tuple(_fix(reports, missing)),
            rank=missing[0] if len(missing) == 1 else None,
            host=reports.host(missing[0]) if len(missing) == 1 else "",
            evidence={"missing": list(missing), "late": list(reports.late), "n_ranks": n},
        )
    ]


def _death(reports: Reports) -> str:
    died = next(iter(reports.dead.values()))
    tail = [str(line) for line in died.get("tail", [])]
    how = f"signal {died['signal']}" if died.get("signal") else f"exit code {died.get('code')}"
    return f"{how} while {died.get('at')}, {last_words(tail)}"


def _mates(reports: Reports) -> str:
    """Say which hosts missing ranks belong to, as far as local ranks tell; empty when not known."""
    if len({reports.host(rank) for rank in reports.facts}) < 2 or reports.expected_hosts:
        return ""
    of = {rank: int(known.get("local_rank", 0)) for rank, known in reports.facts.items()}
    guesses: list[str] = []
    for rank in reports.missing[:4]:
        neighbours = [r for r in of if abs(r - rank) < 8 and r - of[r] <= rank and of[r] != r]
        hosts = {reports.host(r) for r in neighbours if r - of[r] <= rank <= r}
        if len(hosts) == 1:
            guesses.append(f"rank {rank} belongs to {hosts.pop()}")
    return f" ({'; '.join(guesses)})" if guesses else ""


def _fix(reports: Reports, missing: tuple[int, ...]) -> list[str]:
    host = reports.host(missing[0])
    if host:
        return [f"ssh {host} pgrep -af python"]
    return []
