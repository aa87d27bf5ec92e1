"""Two gloo ranks: an island before and after DDP wrapping gives the gradients of one process on the whole batch."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hypocenter


def built(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.GELU()), nn.Linear(8, 1)).to(dtype)


def gradients(model, x, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(x)
    out.float().mean().backward()
    return [p.grad.float().clone() for p in model.parameters()]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    for dtype in (torch.float32, torch.bfloat16):
        autocast = dtype == torch.float32
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
        mine = x[2 * rank : 2 * rank + 2]
        alone = built(dtype)
        hypocenter.island(alone, ["1"])
        parts = []
        for r in range(2):
            alone.zero_grad(set_to_none=True)
            parts.append(gradients(alone, x[2 * r : 2 * r + 2], autocast))
        mean = [(a + b) / 2 for a, b in zip(*parts, strict=True)]
        for before in (True, False):
            model = built(dtype)
            if before:
                hypocenter.island(model, ["1"])
            wrapped = DistributedDataParallel(model)
            if not before:
                handle = hypocenter.island(wrapped, ["module.1"])
                assert handle.targets == ("1",), handle
            got = gradients(wrapped, mine, autocast)
            worst = max(float((a - b).abs().max()) for a, b in zip(got, mean, strict=True))
            print(f"rank {rank} {dtype} {'before' if before else 'after'} worst {worst:.3g}", flush=True)
            assert worst <= (0 if autocast else 2e-3), worst  # bfloat16 gradients are averaged in bfloat16
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a normal exit


if __name__ == "__main__":
    main()
