"""This machine as the checks see it: environment, files, programs, and what child processes say of torch."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hypocenter
from hypocenter.doctor.machine import Machine, Reply

ALL_S = 80.0  # seconds, for everything
LEAST_S = 0.5  # for a program when the time is up already: most answer in a hundredth of that
TORCH_SHARE = 0.75  # of them for torch's import and the first look at the devices, the rest for programs
PROGRAM_S = 10.0  # for a compiler's or a driver tool's version; nvidia-smi without persistence mode takes up to 5 s
AFTER_KILL_S = 2.0  # for the pipes to close; a process stuck in the kernel keeps them open, and is left behind


def this_machine(
    environ: Mapping[str, str] | None = None, *, timeout_s: float = ALL_S, builds: bool | None = None
) -> Machine:
    """Ask torch and DeepSpeed in child processes, side by side; other programs only when a check wants to know.

    Args:
        environ: `os.environ` when None.
        timeout_s: after which no answer is waited for any more.
        builds: whether CUDA extensions are to be built here; None: told by what is installed.
    """
    until = time.monotonic() + timeout_s
    environ = dict(os.environ if environ is None else environ)
    installed = packages()
    with ThreadPoolExecutor(2) as pool:
        torch = pool.submit(facts, "torch_facts", environ, timeout_s * TORCH_SHARE)
        deepspeed = (
            pool.submit(facts, "deepspeed_facts", environ, timeout_s * TORCH_SHARE)
            if "deepspeed" in installed
            else None
        )
    return Machine(
        environ=environ,
        ask=functools.cache(lambda argv: run(argv, environ=environ, timeout_s=_at_most(until))),
        torch=torch.result(),
        deepspeed=deepspeed.result() if deepspeed is not None else {},
        packages=installed,
        host=socket.gethostname(),
        n_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0,
        builds=builds,
    )


def _at_most(until: float) -> float:
    return max(min(PROGRAM_S, until - time.monotonic()), LEAST_S)


def packages() -> dict[str, str]:
    """Return versions of the installed distributions by name, in lower case with dashes; unreadable ones left out."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        try:
            name, version = distribution.metadata["Name"], distribution.version
        except Exception:  # metadata of a half-removed package: whatever it raises, the others count
            continue
        if name:
            found.setdefault(str(name).lower().replace("_", "-"), str(version))
    return found


def switches(environ: Mapping[str, str] | None = None, *, timeout_s: float = ALL_S) -> dict[str, Any]:
    """Return versions and switches of torch in a fresh process that wakes no device: what ranks compare."""
    return facts("torch_facts", os.environ if environ is None else environ, timeout_s, "--switches")


def facts(script: str, environ: Mapping[str, str], timeout_s: float, *flags: str) -> dict[str, Any]:
    """Return the last line that `python -m hypocenter.examine.<script>` prints; else a `status` of what failed."""
    command = [sys.executable, "-W", "ignore", "-m", f"hypocenter.examine.{script}", *flags]
    reply = run(command, environ=for_children(environ), timeout_s=timeout_s)
    if reply is None:
        return {"status": "failed", "error": f"{sys.executable} could not be started"}
    if reply.code is None:
        return {"status": "timeout", "seconds": timeout_s, "error": f"no answer within {timeout_s:g} s"}
    return _answer(reply)


def for_children(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without our variables (the doctor is not recorded), able to import this package."""
    plain = {name: value for name, value in environ.items() if not name.startswith("HYPOCENTER_")}
    home = Path(hypocenter.__file__).resolve().parents[1]
    if home.name not in ("site-packages", "dist-packages"):  # those are found anyway, and must not come before stdlib
        plain["PYTHONPATH"] = os.pathsep.join(filter(None, [str(home), plain.get("PYTHONPATH", "")]))
    return plain


def _answer(reply: Reply) -> dict[str, Any]:
    lines = [line for line in reply.text.splitlines() if line.startswith("{")]
    try:
        answer = json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        answer = None
    if isinstance(answer, dict):
        return answer
    said = [line for line in reply.errors.splitlines() if line.strip()]
    ended = f"signal {-reply.code}" if reply.code is not None and reply.code < 0 else f"exit code {reply.code}"
    return {"status": "crashed", "error": (said[-1] if said else "it said nothing"), "ended": ended}


def run(argv: Sequence[str], *, environ: Mapping[str, str], timeout_s: float = PROGRAM_S) -> Reply | None:
    """Run a program: None when it cannot be started; code None when it was stopped in time, with its children."""
    try:
        process = subprocess.Popen(
            list(argv), env=dict(environ), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except (OSError, ValueError):
        return None
    try:
        text, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return _stopped(process)
    return Reply(code=process.returncode, text=text, errors=errors)


def _stopped(process: subprocess.Popen[str]) -> Reply:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:  # Windows: what it has started stays
            process.kill()
    try:
        text, errors = process.communicate(timeout=AFTER_KILL_S)
    except subprocess.TimeoutExpired:
        text, errors = "", ""
    return Reply(code=None, text=text, errors=errors)
