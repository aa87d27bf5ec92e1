"""`--stop-after-step N`: all ranks leave at the same step, as a program does that has come to its end.

A rank that is gone while another still waits for its part of a collective takes it down; so the ranks wait for each
other once, and close their process groups, whose threads would otherwise be ended in the midst of what they do.

To close a group waits until its work is done, in gloo as long as a collective may take. Where a rank does not come to
the meeting, or closing takes longer, the groups are left as they are, also by the end of the interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import threading
from datetime import timedelta

import torch

from hypocenter.session.side_thread import never_freed


def at_exit_leave_together(timeout_s: float) -> None:
    """Call `leave_together` when the interpreter exits: what trainers tidy up until then may need their groups."""
    atexit.register(leave_together, timeout_s)


def leave_together(timeout_s: float) -> None:
    """Wait at most so long for all ranks, then close the process groups. Does nothing in a process that is alone."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    if not _have_met(timeout_s):
        _leave_open()
        return
    gc.collect()
    try:
        closing = threading.Thread(target=_close, daemon=True)
        closing.start()
    except RuntimeError:  # an interpreter that starts no thread any more
        _leave_open()
    else:
        closing.join(timeout_s)


def _have_met(timeout_s: float) -> bool:
    """Wait for all ranks in a barrier, and return whether every rank has come."""
    try:
        work = torch.distributed.barrier(async_op=True)
        return work is None or work.wait(timedelta(seconds=timeout_s)) is not False
    except Exception:  # a rank that never takes this step: it is not waited for any longer
        return False


def _close() -> None:
    """Destroy the process groups in a thread that nobody waits for: whatever frees a group last waits for its work."""
    with contextlib.suppress(Exception):
        groups = _groups()
        torch.distributed.destroy_process_group()
        groups.clear()


def _leave_open() -> None:
    for group in _groups():
        never_freed(group)


def _groups() -> list[object]:
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map)
