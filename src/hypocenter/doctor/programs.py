"""Programs asked with a limit of time: the doctor never hangs, whatever a driver or a file system does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from hypocenter.doctor.machine import Reply

PROGRAM_S = 10.0  # for a compiler's or a driver tool's version; nvidia-smi without persistence mode takes up to 5 s
AFTER_KILL_S = 2.0  # for the pipes to close; a process stuck in the kernel keeps them open, and is left behind


def run(argv: Sequence[str], *, environ: Mapping[str, str], timeout_s: float = PROGRAM_S) -> Reply | None:
    """Its answer; None when it cannot be started; code None when it was stopped, with all its children."""
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
        os.killpg(process.pid, signal.SIGKILL)
    try:
        text, errors = process.communicate(timeout=AFTER_KILL_S)
    except subprocess.TimeoutExpired:
        text, errors = "", ""
    return Reply(code=None, text=text, errors=errors)
