"""This process as one attempt at being its rank."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime, timezone

from hypocenter import launcher
from hypocenter.nouns import Attempt


def this_attempt() -> Attempt:
    """Begun now."""
    now_ns = time.time_ns()
    return Attempt(
        number=launcher.attempt(os.environ),
        host=socket.gethostname(),
        pid=os.getpid(),
        started=datetime.fromtimestamp(now_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds"),
        started_ns=now_ns,
    )
