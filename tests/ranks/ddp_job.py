"""DDP on a few layers. Options: bf16, view, fault=KIND[:RANK[:STEP[:PARAM]]], steps=N, accumulate=N, quiet, hand, flat.

Faults: nan, flip (of the highest bit of an exponent), times (one element, by 1e7), ten (a batch of tenfold targets),
spike (on every rank), none.
"""

import gc
import hashlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OPTIONS = dict(arg.split("=", 1) if "=" in arg else (arg, "1") for arg in sys.argv[1:])
_GIVEN = OPTIONS.get("fault", "none").split(":")
KIND, RANK, STEP, PARAM = [*_GIVEN, *["none", "1", "6", "2.weight"][len(_GIVEN) :]]


def damaged(gradient):
    """What a faulty device would make of it."""
    gradient = gradient.clone()
    one = gradient.view(-1)[3:4]
    if KIND == "nan":
        one.fill_(float("nan"))
    elif KIND == "flip":
        one.view(torch.int32).bitwise_xor_(1 << 30)  # times 2**128 for numbers below 2
    else:
        one.mul_(1e7)
    return gradient


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    by_hand = "hand" in OPTIONS or "flat" in OPTIONS
    wrapped = model if by_hand else DistributedDataParallel(model, gradient_as_bucket_view="view" in OPTIONS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = torch.Generator().manual_seed(10 + rank)
    accumulate = int(OPTIONS.get("accumulate", 1))
    for step in range(int(OPTIONS.get("steps", 10))):
        is_here = step == int(STEP) and rank == int(RANK)
        handle = None
        if is_here and KIND in ("nan", "flip", "times"):
            left = [damaged]  # once: a replay of the step is fine
            handle = dict(model.named_parameters())[PARAM].register_hook(
                lambda g, left=left: left.pop()(g) if left else None
            )
        for micro in range(accumulate):
            x = torch.randn(16, 8, generator=batches)
            target = x.sum(-1) * (10 if is_here and KIND == "ten" else 1)
            if step == int(STEP) and KIND == "spike":
                target = target + 1e6
            if by_hand or micro == accumulate - 1:
                (wrapped(x).squeeze(-1) - target).pow(2).mean().backward()
            else:
                with wrapped.no_sync():
                    (wrapped(x).squeeze(-1) - target).pow(2).mean().backward()
        if handle is not None:
            handle.remove()
        if "hand" in OPTIONS:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= n
        if "flat" in OPTIONS:
            gradients = [p.grad for p in model.parameters()]
            flat = torch.cat([g.view(-1) for g in gradients])
            dist.all_reduce(flat)
            for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
                g.copy_(part.view_as(g) / n)
        optimizer.step()
        optimizer.zero_grad()
    digest = sum(p.double().sum().item() for p in model.parameters())
    bits = "".join(p.detach().numpy().tobytes().hex() for p in model.parameters())
    print(f"rank {rank} sum {digest!r} bits {hashlib.sha256(bits.encode()).hexdigest()}", flush=True)


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
