"""`--stop-after-step N`: all ranks leave at the same step, as a program does that has come to its end.

A rank that is gone while another still waits for its part of a collective takes it down; so the ranks wait for each
other once, and close their process groups, whose threads would otherwise be ended in the midst of what they do.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
from datetime import timedelta

import torch


def at_exit_leave_together(timeout_s: float) -> None:
    """Do it when the interpreter exits: what trainers tidy up on the way there may still need their groups."""
    atexit.register(leave_together, timeout_s)


def leave_together(timeout_s: float) -> None:
    """Wait for all ranks, at most so long, and close the process groups. Nothing in a process that is alone."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    from torch import distributed

    with contextlib.suppress(Exception):  # a rank that never takes this step: it is not waited for any longer
        work = distributed.barrier(async_op=True)
        if work is not None:
            work.wait(timedelta(seconds=timeout_s))
    gc.collect()
    with contextlib.suppress(Exception):
        distributed.destroy_process_group()
