"""`command:WORDS`: a program of one's own, with the alert as JSON on its stdin."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from contextlib import suppress

from hypocenter.notify.alert import Alert

prefixes = ("command:",)
about = "run WORDS, with the alert as JSON on stdin and its line in HYPOCENTER_ALERT"


def check(target: str) -> str:
    """Return what is wrong with what follows the prefix; empty if nothing is."""
    try:
        return "" if shlex.split(target) else "it names no command"
    except ValueError as error:
        return str(error).lower()


def send(target: str, alert: Alert, timeout_s: float) -> None:
    """Run the command in a group that is killed when it takes too long; no shell reads what a run says.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be started, failed, or took too long.
    """
    environment = os.environ | {"HYPOCENTER_ALERT": f"{alert.run}: {alert.title}".replace("\0", "")}
    words = shlex.split(target)
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment,
        start_new_session=True,
    ) as started:  # fmt: skip
        try:
            started.communicate(alert.json, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)
            raise
    if started.returncode:
        raise subprocess.CalledProcessError(started.returncode, words[0])
