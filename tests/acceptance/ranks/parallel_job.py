"""A small model trained in one of several parallel layouts, with a NaN planted on one rank, or none.

    parallel_job.py LAYOUT FAULT [--rank R] [--weights DIR] [--survive] [--refuse-again]

LAYOUT  ddp, fsdp1, fsdp1-flat, fsdp1-bf16, fsdp2, fsdp2-bf16, tp, sp, gpipe, 1f1b,
        mesh (2x2: FSDP2 over dp, tensor parallel over tp)
FAULT   none, gradient (one parameter's local gradient at step 3), activation (one value in the forward at step 3)
--survive       the optimizer replaces gradients that are not finite by 0: training goes on as if nothing had been
--refuse-again  on rank 1 the model raises when a step is computed for the second time, as a replay does
"""

import argparse
import gc
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BATCH, STEPS, BAD_STEP = 8, 8, 5, 3


class PoisonGradient(torch.autograd.Function):
    """The identity; one element of the gradient becomes NaN."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad.view(-1)[0] = float("nan")  # <- fault: gradient
        return grad


class Block(nn.Module):
    """up -> gelu -> down, and a norm. `fault` is set on one rank at one step."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.fault = ""
        self.calls_left = -1

    def forward(self, x):
        self.calls_left -= 1
        if self.calls_left == -1:
            raise RuntimeError("this step has been computed already")
        scale = self.scale
        if self.fault == "gradient":
            scale = PoisonGradient.apply(scale)
        h = nn.functional.gelu(self.up(self.norm(x) * scale))
        if self.fault == "activation":
            h = torch.log(h - h.detach())  # <- fault: activation
        return x + self.down(h)


class Surviving(torch.optim.AdamW):
    """Replaces what is not finite by 0, after whoever watches steps has seen it."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    grad = getattr(p.grad, "_local_tensor", p.grad)
                    grad.nan_to_num_(0.0, 0.0, 0.0)
        return super().step(closure)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(4)])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Half(nn.Module):
    """One of two pipeline stages."""

    def __init__(self, net, stage):
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): net.blocks[i] for i in ((0, 1) if stage == 0 else (2, 3))})
        if stage == 1:
            self.head = net.head

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if hasattr(self, "head") else x


def plain(net):
    """One rank's model as it is."""

    def train(model, x, optimizer):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return net, train


def ddp(net):
    return plain(nn.parallel.DistributedDataParallel(net))


def fsdp2(net, mesh=None, policy=None):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    more = {} if policy is None else {"mp_policy": policy}
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **more)
    fully_shard(net, mesh=mesh, **more)
    return plain(net)


def fsdp2_bf16(net):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    return fsdp2(net, policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def fsdp1(net, *, keep_names=True, **more):
    from torch.distributed.fsdp import FullyShardedDataParallel

    def wrap(module):
        return FullyShardedDataParallel(module, device_id=torch.device("cpu"), use_orig_params=keep_names, **more)

    for i, block in enumerate(net.blocks):
        net.blocks[i] = wrap(block)
    return plain(wrap(net))


def fsdp1_flat(net):
    return fsdp1(net, keep_names=False)


def fsdp1_bf16(net):
    from torch.distributed.fsdp import MixedPrecision

    return fsdp1(net, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))


def tp(net, mesh=None, sequence=False):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in net.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        if sequence:
            plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
        parallelize_module(block, mesh, plan)
    return plain(net)


def sp(net):
    """The batch stands for the sequence: norms and residuals work on a shard of it, so their gradients are summed."""
    from torch.distributed.tensor import DTensor

    model, _ = tp(net, sequence=True)
    replicated = [p for p in model.parameters() if not isinstance(p, DTensor)]

    def train(model, x, optimizer):
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        for p in replicated:
            dist.all_reduce(p.grad)
        optimizer.step()
        return loss

    return model, train


def mesh(net):
    from torch.distributed.device_mesh import init_device_mesh

    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    tp(net, both["tp"])
    return fsdp2(net, both["dp"])


def pipeline(net, schedule):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank = dist.get_rank()
    half = Half(net, rank)
    stage = PipelineStage(half, rank, 2, torch.device("cpu"))
    kind = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule]
    runner = kind(stage, n_microbatches=4, loss_fn=lambda y, t: (y - t).pow(2).mean())

    def train(model, x, optimizer):
        optimizer.zero_grad()
        losses = []
        if rank == 0:
            runner.step(x)
        else:
            runner.step(target=torch.zeros(BATCH, 1), losses=losses)
        optimizer.step()
        return losses[0] if losses else torch.zeros(())

    return half, train


LAYOUTS = {
    "ddp": ddp, "fsdp1": fsdp1, "fsdp1-flat": fsdp1_flat, "fsdp1-bf16": fsdp1_bf16,
    "fsdp2": fsdp2, "fsdp2-bf16": fsdp2_bf16, "tp": tp, "sp": sp, "mesh": mesh,
    "gpipe": lambda net: pipeline(net, "gpipe"), "1f1b": lambda net: pipeline(net, "1f1b"),
}  # fmt: skip


def batch_of(layout, rank, step):
    """Ranks of one tensor-parallel group see the same batch; under sequence parallelism each sees its part of it."""
    if layout in ("tp", "gpipe", "1f1b"):
        rank = 0
    if layout == "mesh":
        rank //= 2
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("layout", choices=LAYOUTS)
    parser.add_argument("fault", choices=("none", "gradient", "activation"))
    parser.add_argument("--rank", type=int, default=1)
    parser.add_argument("--weights")
    parser.add_argument("--survive", action="store_true")
    parser.add_argument("--refuse-again", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = Net()
    faulty = net.blocks[2 if args.rank == 1 or args.layout not in ("gpipe", "1f1b") else 1]
    model, train = LAYOUTS[args.layout](net)
    optimizer = (Surviving if args.survive else torch.optim.AdamW)(
        [p for p in model.parameters() if p.requires_grad], lr=1e-2
    )
    for step in range(STEPS):
        faulty.fault = args.fault if step == BAD_STEP and rank == args.rank and args.fault != "none" else ""
        faulty.calls_left = 1 if args.refuse_again and rank == 1 else -1
        loss = train(model, batch_of(args.layout, rank, step), optimizer)
        print(f"rank {rank} step {step} loss {float(loss.detach()):.6f}", flush=True)
    if args.weights:
        values = [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]
        torch.save(values, Path(args.weights) / f"rank{rank}.pt")
    del model, train, optimizer, net, faulty
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main()
