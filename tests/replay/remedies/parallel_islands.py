"""Two gloo ranks: an island before and after wrapping in DDP and FSDP2 computes what it does in one process."""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
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


def sharded(rank):
    """FSDP2 with units at, around and inside the island; bfloat16 parameters, and float32 ones cast by FSDP."""
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(rank))
    for dtype, policy in (
        (torch.bfloat16, MixedPrecisionPolicy()),
        (torch.float32, MixedPrecisionPolicy(param_dtype=torch.bfloat16)),
    ):
        alone = built(torch.bfloat16)
        hypocenter.island(alone, ["1"])
        expected = alone(x.bfloat16())
        for units in ([], ["1"], ["1.0"], ["1", "1.0"]):
            for before in (True, False):
                model = built(dtype)
                if before:
                    hypocenter.island(model, ["1"])
                for unit in reversed(units):
                    fully_shard(model.get_submodule(unit), mp_policy=policy)
                fully_shard(model, mp_policy=policy)
                if not before:
                    hypocenter.island(model, ["1"])
                seen = []
                model[1][0].register_forward_hook(lambda m, args, out, seen=seen: seen.append(out.dtype))
                out = model(x.to(dtype))
                out.float().mean().backward()
                assert seen == [torch.float32], (dtype, units, before, seen)
                assert torch.allclose(out.float(), expected.float(), rtol=1e-2, atol=1e-3), (dtype, units, before)
                assert all(p.grad is not None and p.grad.dtype == dtype for p in model.parameters())
    print(f"rank {rank} sharded", flush=True)


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
    sharded(rank)
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a normal exit


if __name__ == "__main__":
    main()
