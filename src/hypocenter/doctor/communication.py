"""Communication: every rank examines itself and its links, one answer comes out. The half without torch.

Under a launcher (torchrun, srun, mpirun) each rank's process calls `examine_job`; without one it starts local ranks.
What a rank does is in `hypocenter.examine`: a child process, ended with this one or when the time is up. The children
meet at the job's store; the lowest rank that came gathers all reports, its parent judges them (`over_ranks`), and the
others are told. So all ranks end with the same exit code, and one prints.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from hypocenter.doctor import job
from hypocenter.doctor.answer import Check, CheckStatus
from hypocenter.doctor.child import Child
from hypocenter.doctor.job import Place
from hypocenter.doctor.over_ranks import judged
from hypocenter.doctor.over_ranks.reports import last_words

_TO_END_S = 1.0  # of the timeout, for ending the children
_AFTER_SPEAKING_S = 1.5  # how long the children of the rank that speaks may take to tell the others
_SHOWN_TO_OTHERS = 200  # checks that travel back: what the exit code is made from
_LEAST_LOCAL, _MOST_LOCAL = 2, 4  # ranks on a machine without devices
_DEVICE_FILES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/kfd", "/dev/davinci0", "/dev/davinci_manager")
CODE, TITLE = "comm.rendezvous", "rendezvous"


class Examined(NamedTuple):
    """The result of an examination: the same on every rank, so that all end with the same exit code."""

    checks: tuple[Check, ...]
    missing: tuple[int, ...]  # ranks that never came
    n_ranks: int


def examine_job(
    *,
    timeout_s: float,
    environ: Mapping[str, str] = os.environ,
    ranks: int | None = None,
    own: Sequence[Check] = (),
    settings: Mapping[str, Any] | None = None,
) -> Examined:
    """Examine communication and arithmetic of the whole job; returns within `timeout_s`, whatever hangs.

    On ranks that do not speak it returns only after the one that speaks has ended: a launcher that sees a rank fail
    ends the others, and must not end that one before it has printed.

    Args:
        timeout_s: from this call to the return.
        environ: as the launcher made it.
        ranks: how many local ranks to start where there is no launcher; None: one per device, 2 to 4 without any.
        own: checks that this rank made itself (toolkits, settings of its machine). They travel: what comes out holds
            those of all ranks, each once per host.
        settings: of this process, plain data; compared over the ranks.
    """
    deadline = time.monotonic() + timeout_s - min(_TO_END_S, 0.1 * timeout_s)
    carried = {"own": msgspec.to_builtins(own), "settings": dict(settings or {})}
    here = job.place(environ)
    if here is None:
        return _locally(deadline, environ, ranks, carried)
    if not here.host:
        return no_meeting_place(here)
    return _as_rank(here, deadline, environ, carried)


def speaks(examined: Examined, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process prints: the lowest rank that came does, the others print nothing."""
    here = job.place(environ)
    if here is None:
        return True
    return here.rank == next((r for r in range(examined.n_ranks) if r not in set(examined.missing)), 0)


def _as_rank(here: job.Place, deadline: float, environ: Mapping[str, str], carried: Mapping[str, Any]) -> Examined:
    """Examine this process as one of several ranks that a launcher has started."""
    request = _request(here.rank, here.n_ranks, deadline, carried) | {
        "store_host": here.host, "store_port": here.port, "hosts_store": here.hosts_store,
        "local_rank": here.local_rank, "key": here.key,
    }  # fmt: skip
    hosts = job.hosts_of(environ)
    child = Child(request, environ)
    died: dict[str, Any] = {}
    try:
        while True:
            kind, message = _next([child], deadline)
            if kind == "reports":
                examined = _answered(child, message, hosts)
                _close_at_exit(child)
                return examined
            if kind == "verdict":
                verdict = message["verdict"]
                _until_spoken(child, deadline)
                child.kill()
                return msgspec.convert(verdict, Examined)
            if kind == "unreachable":
                return _given_up(child, unreachable(here, message["text"]), here, deadline)
            if kind == "closed" and not died and time.monotonic() < deadline:
                died = child.how_it_ended(0.5)  # another child says so to the others, and goes on for it
                child.kill()
                again = _request(here.rank, here.n_ranks, deadline, carried)
                child = Child({**request, **again, "died": died}, environ)
                continue
            examined = died_alone(here, died) if died else no_word(here, child.last_at, child.tail())
            return _given_up(child, examined, here, deadline)
    except BaseException:
        child.kill()
        raise


def _locally(deadline: float, environ: Mapping[str, str], ranks: int | None, carried: Mapping[str, Any]) -> Examined:
    """Start the ranks of this machine and examine them: there is no launcher."""
    n_ranks = ranks or _n_local(environ, deadline)
    listening = job.free_port()
    port = int(listening.getsockname()[1])
    here = job.Place(
        rank=0, n_ranks=n_ranks, local_rank=0, host="127.0.0.1", port=port, hosts_store=True,
        key=f"local/{os.getpid()}", launcher="",
    )  # fmt: skip
    children: dict[int, Child] = {}
    died: dict[int, dict[str, Any]] = {}

    def start(rank: int) -> None:
        request = _request(rank, n_ranks, deadline, carried if rank == 0 else {}) | {
            "store_host": here.host, "store_port": port, "hosts_store": rank == 0, "local_rank": rank, "key": here.key,
            "store_fd": listening.fileno() if rank == 0 else -1, "died": died.get(rank, {}),
        }  # fmt: skip
        keep = (listening.fileno(),) if rank == 0 else ()
        children[rank] = Child(request, job.local_environment(environ, rank, n_ranks, port), keep)

    try:
        for rank in range(n_ranks):
            start(rank)
        while True:
            kind, message = _next(list(children.values()), deadline)
            if kind == "reports":
                return judged(message, {})
            if kind == "timeout":
                return no_word(here, children[0].last_at, children[0].tail())
            for rank in [r for r, child in children.items() if not child.is_open and r not in died]:
                died[rank] = children[rank].how_it_ended(0.5)
                children.pop(rank).kill()
                if rank == 0:  # it kept the store: nobody can meet any more
                    return died_alone(here, died[0])
                start(rank)  # says to the others how the first one ended
    finally:
        listening.close()
        for child in children.values():
            child.kill()


def _n_local(environ: Mapping[str, str], deadline: float) -> int:
    """Return how many ranks to start: one per device; without devices as many as cores, from 2 to 4."""
    if any(os.path.exists(name) for name in _DEVICE_FILES):  # noqa: PTH110  # device files
        child = Child(_request(0, 1, deadline, {}) | {"only": "devices"}, environ)
        try:
            kind, message = _next([child], time.monotonic() + 0.3 * (deadline - time.monotonic()))
            if kind == "devices" and message["n"] > 0:
                return int(message["n"])
        finally:
            child.kill()
    return min(_MOST_LOCAL, max(_LEAST_LOCAL, os.cpu_count() or 1))


def _request(rank: int, n_ranks: int, deadline: float, carried: Mapping[str, Any]) -> dict[str, Any]:
    left_s = max(1.0, deadline - time.monotonic())
    return {"rank": rank, "n_ranks": n_ranks, "timeout_s": left_s, "carried": dict(carried)}


def _answered(child: Child, message: Mapping[str, Any], hosts: Mapping[int, str]) -> Examined:
    """Judge what all have reported, and tell the other ranks: this rank leads."""
    examined = judged(message, hosts)
    telling = tuple(replace(check, evidence={}) for check in examined.checks[:_SHOWN_TO_OTHERS])  # worst first
    child.send({"verdict": msgspec.to_builtins(examined._replace(checks=telling))})
    return examined


def _next(children: Sequence[Child], deadline: float) -> tuple[str, dict[str, Any]]:
    """Wait for a message that is not only about progress: (kind, message), or ("closed" | "timeout", {})."""
    with selectors.DefaultSelector() as selector:
        for child in children:
            if child.is_open:
                selector.register(child.fd, selectors.EVENT_READ, child)
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                child: Child = key.data
                for message in child.read():
                    if message["kind"] != "at":
                        return message["kind"], message
                if not child.is_open:
                    return "closed", {}
    return "timeout", {}


def _until_spoken(child: Child, deadline: float) -> None:
    while child.is_open and time.monotonic() < deadline:
        if _next([child], deadline)[0] in ("spoken", "timeout"):
            return


def _given_up(child: Child, examined: Examined, here: job.Place, deadline: float) -> Examined:
    """Give up on the others. A rank that does not speak says one line, and lets the one that speaks end first."""
    child.kill()
    if not speaks(examined, {"RANK": str(here.rank), "WORLD_SIZE": str(here.n_ranks)}):
        if here.local_rank == 0:
            first = next((check for check in examined.checks if check.status == "problem"), None)
            one_line(
                sys.stderr.fileno(),
                f"hypocenter: rank {here.rank} on {os.uname().nodename}: {first.what}" if first else "",
            )
        time.sleep(max(0.0, deadline - time.monotonic()))
    return examined


def one_line(fd: int, text: str) -> None:
    """Write a line in one piece: several ranks write to one terminal, and text and line end must not part."""
    if text:
        with contextlib.suppress(OSError):
            os.write(fd, (text + "\n").encode("utf-8", "replace"))


def _close_at_exit(child: Child) -> None:
    """Let the child of the rank that speaks tell the others once this process has printed and ends."""

    def end() -> None:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        child.let_end(_AFTER_SPEAKING_S)

    atexit.register(end)


def unreachable(here: Place, text: str) -> Examined:
    """Return the answer that the store did not answer."""
    at = f"{here.host}:{here.port}"
    if here.rank == 0:
        return _examined(here, f"rank 0 could not open its store at {at}: {text}", "another process has this port", ())
    return _examined(
        here,
        f"rank {here.rank} reaches no store at {at}: {text}",
        "rank 0, or torchrun's agent, has not opened it, or this host does not reach that one",
        (f"nc -vz {here.host} {here.port}", "ip -brief address"),
        missing=() if here.launcher == "torchrun" else (0,),
    )


def no_meeting_place(here: Place) -> Examined:
    """Return the answer that the launcher does not say where the ranks meet."""
    return _examined(
        here,
        "MASTER_ADDR is not set",
        f"{here.launcher or 'the launcher'} does not say where rank 0 is",
        ("export MASTER_ADDR=$(hostname) MASTER_PORT=29500  # on every rank: the host of rank 0",),
        status="cannot-tell",
    )


def no_word(here: Place, at: str, tail: Sequence[str]) -> Examined:
    """Return the answer that the time is up and this rank's own child has not come back."""
    return _examined(
        here,
        f"the time was up while rank {here.rank} was {at}",
        last_words(tail) if tail else "the others were not heard of; a longer --timeout may show more",
        (),
    )


def died_alone(here: Place, died: Mapping[str, Any]) -> Examined:
    """Return the answer that this rank's child ended, and so did the one that should have told the others."""
    how = f"signal {died['signal']}" if died.get("signal") else f"exit code {died.get('code')}"
    tail = [str(line) for line in died.get("tail", [])]
    if any("No module named 'torch'" in line for line in tail):
        return _examined(
            here,
            "torch is not installed here",
            "communication and arithmetic are examined with it",
            ("pip install torch",),
            status="cannot-tell",
        )
    return _examined(
        here,
        f"the examination of rank {here.rank} ended with {how} while {died.get('at')}",
        last_words(tail),
        (),
        evidence={"tail": tail},
    )


def _examined(
    here: Place,
    what: str,
    why: str,
    fix: tuple[str, ...],
    *,
    missing: tuple[int, ...] = (),
    status: CheckStatus = "problem",
    evidence: dict[str, Any] | None = None,
) -> Examined:
    check = Check(
        code=CODE,
        area="communication",
        title=TITLE,
        status=status,
        what=what,
        why=why,
        fix=fix,
        rank=here.rank,
        evidence=evidence or {},
    )
    return Examined((check,), missing, here.n_ranks)
