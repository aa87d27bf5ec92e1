"""Whether this process may be forked now without anybody noticing."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

_MOST_BYTES = 2 << 30  # that lie in memory: a fork copies their table, and each page that is written to before it ends
_HARMLESS = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/shm/sem.")
"""What devices have mapped, which nothing that reads on the host touches; locks, such as that of each progress bar."""
_OF_WORKERS = "/dev/shm/torch_"  # batches that came from workers
_NOT_BESIDE = ("grpc", "mpi4py", "ray", "pydevd", "horovod")  # they do things of their own at a fork


def may_fork(own_folder: Path | None, *, has_workers: bool) -> bool:
    """Return whether a child could neither be noticed nor write where this process reads.

    Args:
        own_folder: files in there are Hypocenter's own.
        has_workers: the program forks this process as well, and gets its batches from its children.
    """
    return (
        sys.platform == "linux"
        and threading.current_thread() is threading.main_thread()
        and not any(name in sys.modules for name in _NOT_BESIDE)
        and _nobody_hears_of_children()
        and _resident_bytes() < _MOST_BYTES
        and not _shares_memory(own_folder, has_workers=has_workers)
    )


def _nobody_hears_of_children() -> bool:
    """Return whether the end of a child calls nothing of the program's, and leaves it to be waited for."""
    handler: Any = signal.getsignal(signal.SIGCHLD)
    if handler == signal.SIG_DFL:
        return True
    if getattr(handler, "__module__", "") != "torch.utils.data._utils.signal_handling":
        return False
    cells = getattr(handler, "__closure__", None) or ()  # what it calls then: the handler before it
    return all(cell.cell_contents is None for cell in cells)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _shares_memory(own_folder: Path | None, *, has_workers: bool) -> bool:
    """Return whether this process can write to memory that others, and a child, see."""
    allowed = (*_HARMLESS, *((_OF_WORKERS,) if has_workers else ()), *((f"{own_folder}/",) if own_folder else ()))
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, rights, _, _, _, *path = line.split(None, 5)
        if rights[1] == "w" and rights[3] == "s" and not (path and path[0].startswith(allowed)):
            return True
    return False
