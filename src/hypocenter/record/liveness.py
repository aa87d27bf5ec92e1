"""Whether the process that wrote a file still lives. Only this machine's processes can be looked at, on Linux."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from hypocenter.record.whereabouts import Whereabouts

Liveness = Literal["running", "stopped", "gone", "unknown"]

_PROC = Path("/proc")


def liveness(whereabouts: Whereabouts) -> Liveness:
    """Return what has become of the process: running, stopped, gone; unknown when it cannot be seen from here."""
    here = boot_id(), pid_namespace()
    if not all(here) or here != (whereabouts.boot, whereabouts.pid_namespace) or not whereabouts.start_ticks:
        return "unknown"
    state, ticks = _stat(whereabouts.pid)
    if ticks != whereabouts.start_ticks or state in "ZX":
        return "gone"
    return "stopped" if state in "Tt" else "running"


def boot_id() -> str:
    """Return a name of this start of this machine; "" where that is not known."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def pid_namespace() -> int:
    """Return a name of the space in which process numbers count; 0 where that is not known."""
    try:
        return int(str((_PROC / "self/ns/pid").readlink()).strip("pid:[]"))
    except (OSError, ValueError):
        return 0


def start_ticks(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 when it is gone or cannot be seen."""
    return _stat(pid)[1]


def _stat(pid: int) -> tuple[str, int]:
    """Return the state and start of a process (proc(5), fields 3 and 22); ("X", 0) when it cannot be seen."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()  # the name before it may hold anything
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return "X", 0
