"""Arithmetic of this machine, one process: a child with torch burns its device for a moment, here it is judged."""

from __future__ import annotations

import os
import platform
import selectors
import time
from collections.abc import Mapping

from hypocenter.doctor.answer import Check, CheckStatus
from hypocenter.doctor.child import Child
from hypocenter.doctor.over_ranks.arithmetic import CODE, TITLE, passed, problems_of
from hypocenter.doctor.over_ranks.reports import last_words

_TO_END_S = 0.5


def examine(timeout_s: float, environ: Mapping[str, str] = os.environ) -> list[Check]:
    """Check matmul, sums, softmax and layer norm against float64 and against repeats; returns within `timeout_s`."""
    deadline = time.monotonic() + timeout_s - min(_TO_END_S, 0.1 * timeout_s)
    child = Child({"timeout_s": timeout_s, "only": "arithmetic"}, environ)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.fd, selectors.EVENT_READ)
            while child.is_open and time.monotonic() < deadline:
                selector.select(max(0.0, deadline - time.monotonic()))
                for message in child.read():
                    if message["kind"] == "arithmetic":
                        return _judged(message["found"])
        return [_untold(child)]
    finally:
        child.kill()


def _judged(burn: Mapping[str, object]) -> list[Check]:
    host = platform.node()
    return problems_of(burn, None, host, "this machine") or [passed({0: burn}, host)]


def _untold(child: Child) -> Check:
    """Return the check for a child that did not come to its end."""
    if child.is_open:
        what, status = f"the time was up while {child.last_at}", "problem"
        why = "a computation of some milliseconds did not come back: the device hangs, or the time was too short"
        if not child.last_at.startswith("computing"):
            status, why = "cannot-tell", "a longer --timeout may show more"
        return _check(status, what, why, child)
    ended = child.how_it_ended(0.5)
    if any("No module named 'torch'" in line for line in ended["tail"]):
        return _check("cannot-tell", "torch is not installed here", "arithmetic is examined with it", child)
    how = f"signal {ended['signal']}" if ended.get("signal") else f"exit code {ended.get('code')}"
    return _check("problem", f"the examination ended with {how} while {ended['at']}", last_words(ended["tail"]), child)


def _check(status: CheckStatus, what: str, why: str, child: Child) -> Check:
    return Check(
        code=CODE, area="arithmetic", title=TITLE, status=status, what=what, why=why, host=platform.node(),
        evidence={"tail": child.tail()},
    )  # fmt: skip
