"""Ranks that stopped on the way: died, silent, or stuck in something that depends on nobody else.

A rank that waits for others is no suspect. What it waits for is: who has not come as far, or has started an operation
and not come back from starting it.
"""

from __future__ import annotations

from collections.abc import Mapping

from hypocenter.doctor.answer import Check
from hypocenter.doctor.over_ranks.judgement import BY_BACKEND
from hypocenter.doctor.over_ranks.reports import Report, Reports, check, last_words

CODE, TITLE = "comm.stuck", "progress"
_ON_OTHERS = ("waiting", "exchanging", "done")
_SIGNALS = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_SIGNAL_FIX = {7: "df -h /dev/shm  # SIGBUS: shared memory is full", 9: "dmesg | grep -i 'out of memory'"}

order = 2  # in which judges are asked


def judge(reports: Reports) -> list[Check]:
    """Return the problems by rank, or one check that all went through."""
    found = [_died(reports, rank, report) for rank, report in reports.of.items() if "died" in report]
    found += [_silent(reports, rank, at) for rank, at in reports.silent.items()]
    found += [_stuck(reports, rank, report) for rank, report in reports.at_work.items() if not _depends(report["at"])]
    found += [_own_trouble(reports, r, report) for r, report in reports.at_work.items() if _own_errors(report)]
    if found:
        return found
    troubles = {rank: report["troubles"][0] for rank, report in reports.at_work.items() if report["troubles"]}
    waiting = {rank: str(report["at"]) for rank, report in reports.at_work.items() if report["at"] != "done"}
    if waiting or troubles:
        return [_nobody_named(reports, waiting, troubles)]
    return [check(CODE, TITLE, "ok", _went_through(reports), evidence={"barrier_us": _barriers(reports)})]


def _went_through(reports: Reports) -> str:
    times = sorted(_barriers(reports).values())
    if not times:
        return "the examination ended on every rank"
    return f"the examination ended on every rank; a barrier takes {times[len(times) // 2]:,.0f} µs"


def _barriers(reports: Reports) -> dict[str, float]:
    return {str(rank): report["barrier"]["us"] for rank, report in reports.at_work.items() if report["barrier"]}


def _died(reports: Reports, rank: int, report: Report) -> Check:
    """The process that examined a rank ended by a signal or an error.

    What it means
        A library crashed, or the system ended the process: SIGSEGV in a driver or in NCCL, SIGBUS when shared
        memory is full, SIGKILL when memory ran out.

    How it is decided
        The doctor's child on that rank is gone; another one tells the other ranks. `evidence.tail` holds the last
        lines that it printed, with the Python stack of a crash.

    What to do
        Do what the lines say; for SIGBUS look at `df -h /dev/shm`, for SIGKILL at the kernel's log.

    When it is wrong
        When somebody ended the process by hand.
    """
    died = report["died"]
    number = died.get("signal")
    how = f"by {_SIGNALS.get(number, f'signal {number}')}" if number else f"with exit code {died.get('code')}"
    tail = [str(line) for line in died.get("tail", [])]
    return check(
        "comm.died",
        TITLE,
        "problem",
        f"the examination of {reports.named([rank])} ended {how} while {died.get('at')}",
        last_words(tail),
        (_SIGNAL_FIX[number],) if number in _SIGNAL_FIX else (),
        rank=rank,
        host=reports.host(rank),
        evidence={"tail": tail, **{key: died.get(key) for key in ("signal", "code", "at")}},
    )


def _silent(reports: Reports, rank: int, at: str) -> Check:
    return check(
        CODE,
        TITLE,
        "problem",
        f"{reports.named([rank])} came and then said nothing more; last seen {at}",
        "not even a thread of its own answers: the process is stopped, its host is gone, or a driver call holds it",
        _look(reports, rank),
        rank=rank,
        host=reports.host(rank),
        evidence={"at": at},
    )


def _stuck(reports: Reports, rank: int, report: Report) -> Check:
    """A rank came, began, and did not come back from something that needs no other rank.

    What it means
        The other ranks wait for it; in training the job would hang with a full load on every other card.

    How it is decided
        Each rank says what it is doing. One that waits in an operation is no suspect: one that has not come back
        from *starting* it, or from work of its own, is, and so is one whose process does not answer at all. When
        all wait in the same operation, nobody is named.

    What to do
        Look at the host: is the process in state D, does nvidia-smi answer there, does the kernel's log tell of the
        card?

    When it is wrong
        When the machine is so loaded that one rank came to nothing in the time: give a longer --timeout.
    """
    waiting = [r for r, other in reports.at_work.items() if r != rank and other["at"].startswith(_ON_OTHERS)]
    return check(
        CODE,
        TITLE,
        "problem",
        f"{reports.named([rank])} is stuck {report['at']} for {report['at_s']:.0f} s"
        + (f"; {reports.named(waiting)} {'waits' if len(waiting) == 1 else 'wait'} for it" if waiting else ""),
        "it has not come back from something that needs no other rank",
        _look(reports, rank),
        rank=rank,
        host=reports.host(rank),
        evidence={"at": report["at"], "at_s": report["at_s"]},
    )


def _own_trouble(reports: Reports, rank: int, report: Report) -> Check:
    """The examination failed on a rank, with an error of its own.

    What it means
        A driver or a library refused something there.

    How it is decided
        Time-outs and closed connections are left out: they follow from what happened on other ranks.

    What to do
        Read the message; run `hypocenter doctor` on that host.

    When it is wrong
        When all ranks have the same error, it is a matter of the installation and not of that rank.
    """
    trouble = _own_errors(report)[0]
    return check(
        "comm.failed",
        TITLE,
        "problem",
        f"{reports.named([rank])} failed while {trouble['at']}: {trouble['text']}",
        "no other rank failed this way",
        rank=rank,
        host=reports.host(rank),
        evidence={"troubles": report["troubles"]},
    )


def _own_errors(report: Report) -> list[Mapping[str, str]]:
    """Return the rank's own errors: neither a time-out nor the end of a connection."""
    return [each for each in report["troubles"] if each["kind"] == "error"]


def _nobody_named(reports: Reports, waiting: Mapping[int, str], troubles: Mapping[int, Mapping[str, str]]) -> Check:
    tools = BY_BACKEND.get(reports.backend)
    first = min(troubles) if troubles else min(waiting)
    how = f"{troubles[first]['at']}: {troubles[first]['text']}" if troubles else waiting[first]
    return check(
        CODE,
        TITLE,
        "problem",
        f"{reports.named(set(waiting) | set(troubles))} did not get through; rank {first} was {how}",
        "every rank has started it and waits for the others, so none can be named: a link between them is bad, or "
        f"the library waits for something{f'; see what {tools.library} says' if tools else ''}",
        (tools.log,) if tools else (),
        evidence={"waiting": {str(r): at for r, at in waiting.items()}},
    )


def _depends(at: str) -> bool:
    return at.startswith(_ON_OTHERS)


def _look(reports: Reports, rank: int) -> tuple[str, ...]:
    host, pid = reports.host(rank), reports.facts.get(rank, {}).get("pid")
    if pid is None:
        return ()
    tools = BY_BACKEND.get(reports.backend)
    return (f"ssh {host} {tools.look}",) if tools else ()
