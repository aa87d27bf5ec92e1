"""A gradient explodes: a bit that flipped once, a device that is broken, or the program? Two ranks; rank 1 is hit.

To be run by torchrun with two ranks and one of: transient, persistent, application. Rank 0 prints.
"""

import sys
import warnings

import many_ranks
import torch
import torch.distributed as dist
from torch import nn

FAULT = "" if "--healthy" in sys.argv else next((a for a in sys.argv[1:] if not a.startswith("-")), "transient")
BAD_STEP = 5
state = {"left": 0, "broken": False}


def flipped(result):
    if result.shape[1] == 1 and (state["broken"] or state["left"] > 0):
        state["left"] -= 1
        result.view(torch.int32).view(-1)[7] ^= 1 << 30  # <- fault
    return result


def spoil_the_device():
    """Below everything: the float32 product of this process's CPU."""
    warnings.simplefilter("ignore")
    library = torch.library.Library("aten", "IMPL")

    def addmm(bias, a, b, *, beta=1, alpha=1):
        out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype)
        return flipped(torch.ops.aten.addmm.out(bias, a, b, beta=beta, alpha=alpha, out=out))

    library.impl("addmm", addmm, "CPU")
    return library


def main():
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    library = spoil_the_device() if rank == 1 and FAULT in ("transient", "persistent") else None
    for step, x in many_ranks.batches(8, n_rows=32):
        is_bad = step >= BAD_STEP and rank == 1
        state["left"], state["broken"] = int(step == BAD_STEP and rank == 1), is_bad and FAULT == "persistent"
        if FAULT == "application" and is_bad:
            x = x * 1e20
        loss = (model(x) - x.sum(-1, keepdim=True)).pow(2).mean()
        loss.backward()
        many_ranks.finish(step, loss, many_ranks.norm_of_gradients(model), optimizer)
    del library


many_ranks.run(main)
