"""`python -m hypocenter.examine`: one rank, in a child of `hypocenter doctor`. It ends with its parent, or by itself.

The main thread meets the others and keeps the time; a thread of its own does what may hang. Nothing is waited for at
the end: the process leaves by `os._exit`, whatever a library is doing.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
import time
from typing import Any

from hypocenter.examine.request import Request, Speaker

ROLL_SHARE = 0.7  # of the timeout: until then a rank may come; the first of a machine looks at its toolkits before
SOFT_SHARE = 0.87  # until then the examination should be over
GATHER_SHARE = 0.95  # until then reports are waited for
STILL_S = 5.0  # a rank that others have given up, and that has done nothing for so long, reports as it is
_NCCL_LINES = 400  # of a log that travel
_LOG_BYTES = 1 << 24


def main() -> None:
    """Read the request, do it, and end the process."""
    started = time.monotonic()
    _end_with_parent()
    faulthandler.enable()  # where it was when a library crashes
    request = Request.of(sys.stdin.readline())
    speaker = Speaker(request.speak_fd)
    inbox = Inbox()
    inbox.start()
    speaker.say("at", what="importing torch")
    from hypocenter.examine import device, rank

    rank.quiet()
    if request.only == "devices":
        speaker.say("devices", n=device.n_devices())
    elif request.only == "arithmetic":
        _alone(request, speaker)
    else:
        _with_others(request, speaker, inbox, started)


def _alone(request: Request, speaker: Speaker) -> None:
    from hypocenter.examine import arithmetic, device

    found: dict[str, Any] = {}
    here = device.own_device(request.local_rank)
    here.use()
    budget_s = 1.0 if here.is_cpu else 5.0
    arithmetic.examine(
        here, lambda what: speaker.say("at", what=what), found, max(0.1, min(budget_s, 0.3 * request.timeout_s))
    )
    speaker.say("arithmetic", found=found)


def _with_others(request: Request, speaker: Speaker, inbox: Inbox, started: float) -> None:
    from hypocenter.examine import device, links, rank
    from hypocenter.examine.meeting import Meeting, NoStore, call_roll

    roll_deadline = started + ROLL_SHARE * request.timeout_s
    last = started + GATHER_SHARE * request.timeout_s
    speaker.say("at", what="connecting to the store")
    try:
        meeting = Meeting(request, roll_deadline - time.monotonic())
    except NoStore as error:
        speaker.say("unreachable", text=str(error))
        return
    address = links.own_address(request.store_host, request.store_port)
    listener = None if request.died else _listening(request.rank, address)
    here = device.own_device(request.local_rank)
    speaker.say("at", what="waiting for the other ranks")
    if request.died:
        meeting.put(f"died/{request.rank}", request.died)
        if not meeting.has(f"here/{request.rank}"):
            meeting.count("arrived")  # nobody need wait for it
        roster = meeting.wait("roster", last)
    else:
        roster = call_roll(meeting, request, rank.facts(request, here, listener, address), roll_deadline, last)
    if roster is None:
        speaker.say("unreachable", text="the rank that calls the roll did not")
        return
    roster["backend"], roster["why_gloo"] = rank.backend_for(roster["facts"])
    soft_deadline = started + SOFT_SHARE * request.timeout_s
    leads = request.rank == roster["ranks"][0]
    if leads:  # the times of the rank that leads count: the others may have started later, or earlier
        meeting.put("left_s", soft_deadline - time.monotonic())
    left_s = meeting.wait("left_s", time.monotonic() + 5.0)
    soft_deadline = min(soft_deadline, time.monotonic() + float(left_s or 1e9))
    if request.rank in roster["ranks"]:
        meeting.put(f"report/{request.rank}", _examined(request, speaker, meeting, here, roster, soft_deadline))
    if leads:
        gather_deadline = started + GATHER_SHARE * request.timeout_s
        speaker.say("reports", **_gathered(request, meeting, roster, gather_deadline))
        verdict = inbox.wait("verdict", started + request.timeout_s)
        meeting.put("verdict", verdict)
        inbox.closed.wait(max(0.0, started + request.timeout_s - time.monotonic()))
        meeting.put("spoken", True)
        time.sleep(0.3 if request.hosts_store else 0.05)  # for the others to read it, before the store goes
    else:
        _hear(request, speaker, meeting, started + request.timeout_s)


def _examined(
    request: Request, speaker: Speaker, meeting: Any, here: Any, roster: dict[str, Any], soft_deadline: float
) -> dict[str, Any]:
    """Return this rank's report, complete or as far as it came by the deadline."""
    from hypocenter.examine.rank import Work

    if request.died:
        return {"rank": request.rank, "died": request.died, **request.carried}
    work = Work(request, here, meeting.again(soft_deadline - time.monotonic()), roster, soft_deadline)
    work.start()
    said, next_s = "", 0.0
    while work.is_alive() and time.monotonic() < soft_deadline:
        work.join(0.05)
        if work.at != said:
            said = work.at
            speaker.say("at", what=said)
        if time.monotonic() > next_s:  # seldom: in a large job all do it at the same store
            next_s = time.monotonic() + 0.5
            meeting.put(f"at/{request.rank}", said)
            if work.still_s > STILL_S and meeting.has("hurry"):
                break
    return {**work.report(), "log": _nccl_lines()}


def _gathered(request: Request, meeting: Any, roster: dict[str, Any], deadline: float) -> dict[str, Any]:
    """Return all reports that come, and what is known of the ranks that sent none."""
    reports: dict[int, Any] = {}
    open_ranks = list(roster["ranks"])
    while open_ranks and time.monotonic() < deadline:
        for rank in list(open_ranks):
            report = meeting.get(f"report/{rank}")
            if report is not None:
                reports[rank] = report
                open_ranks.remove(rank)
                if any(trouble["kind"] == "timeout" for trouble in report.get("troubles", ())):
                    meeting.put("hurry", True)  # somebody hangs: who does should not make the others wait longer
        time.sleep(0.02 if open_ranks else 0.0)
    late = [r for r in range(request.n_ranks) if r not in roster["ranks"] and meeting.has(f"here/{r}")]
    dead = {str(r): meeting.get(f"died/{r}") for r in range(request.n_ranks) if r not in roster["ranks"]}
    return {
        "dead": {rank: died for rank, died in dead.items() if died is not None},
        "reports": list(reports.values()), "roster": roster, "late": late, "n_ranks": request.n_ranks,
        "silent": {str(rank): meeting.get(f"at/{rank}") or "starting" for rank in open_ranks},
    }  # fmt: skip


def _hear(request: Request, speaker: Speaker, meeting: Any, deadline: float) -> None:
    """Wait for the leading rank's verdict, and until that rank has spoken."""
    from hypocenter.examine.meeting import Meeting

    try:
        verdict = meeting.wait("verdict", deadline)
        if verdict is not None:
            speaker.say("verdict", verdict=verdict)
        Meeting.until(lambda: meeting.has("spoken") or None, deadline)
    except RuntimeError:  # the store is gone, and with it the leading rank: it has spoken, or never will
        pass
    speaker.say("spoken")


def _listening(rank: int, address: str) -> Any:
    from hypocenter.examine.links import Listener

    try:
        return Listener(rank, address)
    except OSError:  # an interface without that address
        return None


def _nccl_lines() -> list[str]:
    """Return NCCL's own lines of what this process has printed: the warnings, and the first of the rest.

    The doctor has made stdout a file, which can be read where it was written.
    """
    stdout = 1
    try:
        said = os.pread(stdout, _LOG_BYTES, 0).decode("utf-8", "replace")
    except OSError:
        return []
    ours = [line[:500] for line in said.splitlines() if " NCCL " in line]
    warned = [line for line in ours if "NCCL WARN" in line]
    return warned[: _NCCL_LINES // 2] + [line for line in ours if "NCCL WARN" not in line][: _NCCL_LINES // 2]


class Inbox(threading.Thread):
    """Receives what the doctor says after the request. When the doctor is gone, this process ends soon, too."""

    def __init__(self) -> None:
        super().__init__(name="hypocenter-inbox", daemon=True)
        self._messages: dict[str, Any] = {}
        self._changed = threading.Condition()
        self.closed = threading.Event()

    def run(self) -> None:
        """Read messages until the other end is closed, then end the process."""
        import json

        for line in sys.stdin:
            with self._changed:
                self._messages.update(json.loads(line))
                self._changed.notify_all()
        self.closed.set()
        with self._changed:
            self._changed.notify_all()
        time.sleep(2.0)  # for the others to be told
        os._exit(0)

    def wait(self, name: str, deadline: float) -> Any:
        """Return a message; None when it does not come by the deadline."""
        with self._changed:
            while name not in self._messages and not self.closed.is_set() and time.monotonic() < deadline:
                self._changed.wait(max(0.01, deadline - time.monotonic()))
            return self._messages.get(name)


def _end_with_parent() -> None:
    """Have Linux kill this process when the one that started it ends, even if all our threads hang."""
    with contextlib.suppress(OSError, AttributeError):
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


if __name__ == "__main__":
    code = 0
    try:
        main()
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # into the log, which the doctor shows
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
