"""Trains a small model with torch's `fully_shard`, as users set it up, with dropout.

    torchrun --nproc-per-node 2 fsdp2_job.py --setup accumulated --plant activation --at 9

Prints a digest of this rank's shards.
"""

import argparse
import atexit
import gc
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

WIDTH, BATCH = 16, 4
BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
FLOAT16 = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
SETUPS = {  # of `fully_shard`
    "accumulated": {"mp_policy": BFLOAT16, "reshard_after_forward": True},
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False), "reshard_after_forward": False},
    "nodes": {"mp_policy": BFLOAT16, "reshard_after_forward": 2},  # of two ranks each: takes four
    "scaled": {"mp_policy": FLOAT16, "reshard_after_forward": True},
}
PLANTS = ("activation", "gradient")


class Block(nn.Module):
    divisor = 1.0

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.factor = None  # of the activation, whose gradient alone is not finite

    def forward(self, x):
        hidden = torch.tanh(self.up(self.norm(x)))
        if self.factor is not None:
            hidden = Spoiled.apply(hidden, self.factor)
        hidden = self.down(self.dropout(hidden))
        return x + hidden / torch.full_like(hidden, self.divisor)


class Spoiled(torch.autograd.Function):
    """The identity; its gradient is multiplied."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


class Net(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)
        self.checkpointed, self.is_cut = checkpointed, False

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x if self.is_cut else self.head(x)


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", choices=SETUPS, required=True)
    parser.add_argument("--cut", action="store_true", help="the head's backward comes first, then that of the rest")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--blow", type=int, default=-1, help="step at which rank 1's gradient overflows in float16")
    parser.add_argument("--plant", choices=PLANTS, nargs="*", default=(), help="what is not finite on rank 1")
    parser.add_argument("--at", type=int, nargs="*", default=(), help="the step of each plant")
    return parser.parse_args()


def plant(block, step, a):
    """On rank 1 the block divides by zero, or a gradient in its backward is multiplied."""
    block.divisor, block.factor = 1.0, None
    if dist.get_rank() != 1:
        return
    planted = {what for what, at in zip(a.plant, a.at, strict=True) if at == step}
    block.divisor = 0.0 if "activation" in planted else 1.0
    if "gradient" in planted:
        block.factor = torch.ones(2 * WIDTH)
        block.factor[3] = float("nan")
    elif step == a.blow:
        block.factor = torch.full((2 * WIDTH,), 1000.0)


def sharded(a):
    net = Net(checkpointed=a.setup == "accumulated")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **SETUPS[a.setup])
    if a.cut:
        fully_shard(net.head, mesh=mesh, **SETUPS[a.setup])
    return fully_shard(net, mesh=mesh, **SETUPS[a.setup])


def backward(model, x, scale):
    """Of the loss; where the model is cut, of its head alone, and with the gradient of that of what comes before."""
    hidden = model(x)
    begun = hidden.detach().requires_grad_() if model.is_cut else hidden
    output = model.head(begun) if model.is_cut else begun
    scale((output.float() - x.mean(1, keepdim=True)).pow(2).mean()).backward()
    if model.is_cut:
        hidden.backward(begun.grad)


def main():
    a = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = sharded(a)
    model.is_cut = a.cut
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4, enabled=a.setup == "scaled")
    n = 2 if a.setup == "accumulated" else 1
    torch.manual_seed(10 + dist.get_rank())
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for step in range(a.steps):
        plant(model.blocks[1], step, a)
        for microbatch in range(n):
            model.set_requires_gradient_sync(microbatch == n - 1)
            x = torch.randn(BATCH, WIDTH, generator=generator)
            backward(model, x, lambda loss: scaler.scale(loss / n))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.to_local().detach().numpy().tobytes())
    os.write(1, f"rank {dist.get_rank()} digest {digest.hexdigest()} scale {scaler.get_scale()}\n".encode())


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)  # gloo's threads now and then abort a normal exit after all work is done
