"""Ranks that meet at step boundaries while something goes wrong: the council alone, without a session.

agreement_job.py CASE      prints one line of JSON per rank: opened, is_open, longest_s, warnings, meetings, rows
"""

import functools
import gc
import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from hypocenter.session import assembly, tree
from hypocenter.session.agreement import Council

TIMEOUT_S = 3.0
STEPS, BAD_STEP = 120, 60
case = sys.argv[1]
if case.startswith("tree-"):  # few ranks as many are connected: nodes of two, their leaders in pairs
    case = case.removeprefix("tree-")
    assembly.MESH_RANKS = 1
    os.environ["LOCAL_WORLD_SIZE"] = "2"
    assembly.levels_of = functools.partial(tree.levels_of, fan_out=2)


LOSES = case in ("stop", "kill")
AFTER = 20  # steps: that all ranks have met before one of them is lost, and that the others go on


def couple(is_open):
    """What training does: every step needs every rank. Tell whether the council is open on all of them."""
    if case == "uneven":
        return False
    opened = torch.tensor(float(is_open))
    dist.all_reduce(opened, dist.ReduceOp.MIN)
    return bool(opened)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    warnings, meetings, longest_s, opened, talk = [], 0, 0.0, None, None
    is_wanted, timeout_s = not (case == "absent" and rank == 1), TIMEOUT_S / 6 if case == "absent" else TIMEOUT_S
    council = Council(is_wanted=is_wanted, timeout_s=timeout_s, warn=warnings.append)
    together = closed = None  # steps: from which all ranks meet, and from which this one no longer does
    for step in range(10_000 if LOSES else STEPS):  # on a busy machine it takes ranks many steps to find together
        if not LOSES or together is None:  # later the others would wait for the lost one in a collective of their own
            together = step if couple(council.is_open) else None
        elif closed is None and not council.is_open:
            closed = step
        if closed is not None and step >= closed + AFTER:
            break
        time.sleep(0.005)
        if case == "reinit" and step == BAD_STEP:
            dist.barrier()
            dist.destroy_process_group()
            council.begin(step, failed=False, communicates=lambda: True)  # nobody is there: nothing happens
            os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
            dist.init_process_group("gloo")
        if case == "restarted" and step == BAD_STEP:  # torchrun's store is the same one after a restart
            council.close()
            os.environ["TORCHELASTIC_RESTART_COUNT"] = "1"
            council = Council(is_wanted=True, timeout_s=timeout_s, warn=warnings.append)
        if LOSES and rank == 1 and together is not None and step == together + AFTER:
            os.kill(os.getpid(), signal.SIGSTOP if case == "stop" else signal.SIGKILL)
        if case == "uneven" and rank == 1 and step % 2:
            continue
        started = time.perf_counter()
        council.begin(step, failed=rank == 1 and step % 10 == 7, communicates=lambda: case != "lazy")
        meeting = council.end()
        longest_s = max(longest_s, time.perf_counter() - started)
        if meeting is not None:
            meetings += 1
            assert meeting.failed == (step % 10 == 7) or case == "uneven", meeting
            assert meeting.step == step or case == "uneven"
        opened = step if opened is None and council.is_open else opened
        if case == "talk" and step == STEPS - 1:
            tensor = torch.full((2, rank + 1), float(rank), dtype=torch.bfloat16)
            got = council.exchange(tensor, to=(rank + 1) % size, frm=(rank - 1) % size)
            talk = [
                council.gather(10 * rank),
                council.most([rank, -rank]),
                str(got.dtype),
                list(got.shape),
                got.tolist(),
            ]
        if case == "fork" and step == BAD_STEP and (pid := os.fork()) == 0:
            council.forked()
            council.begin(step, failed=False, communicates=lambda: True)
            os._exit(0 if not council.is_open else 1)
        elif case == "fork" and step == BAD_STEP:
            assert os.waitpid(pid, 0)[1] == 0
    told = {"rank": rank, "opened": opened, "is_open": council.is_open, "longest_s": longest_s, "warnings": warnings,
            "meetings": meetings, "rows": [r.summary.max for r in council.take_rows()], "talk": talk}  # fmt: skip
    print("\n" + json.dumps(told), flush=True)
    council.close()
    if not LOSES:
        gc.collect()
        dist.barrier()
        dist.destroy_process_group()


main()
