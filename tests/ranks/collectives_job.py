"""Training that sends values around: `collectives_job.py OP FAULT RANK`; the fault is at step 2, the steps are 0 to 3.

OP: all_reduce, async, reduce_scatter, all_gather, broadcast, all_to_all, p2p, turned, dtensor, fsdp2, ddp, half.
FAULT: none; below torch.distributed's functions, in the process group: drop (the result is the own input), wrong (an
element of the result), bit (the lowest bit of one element), sent (an element that arrives), and big (no fault of the
group: shares that fit into float16, and whose sum does not).
"""

import gc
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

OP, FAULT, RANK = sys.argv[1], sys.argv[2], int(sys.argv[3])
NOW = {"step": -1, "done": False}


def is_due():
    return NOW["step"] == 2 and dist.get_rank() == RANK and not NOW["done"]


def damage(tensor, before=None):
    """What the wire or the card made of a result."""
    NOW["done"] = True
    if FAULT == "drop":
        tensor.copy_(before)
    elif FAULT == "bit":
        tensor.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
    else:
        tensor.view(-1)[0] += 1.0


def spoil(name, result_of):
    """Put a damage below a collective: on the class, since a process group has no attributes of its own."""
    original = getattr(dist.ProcessGroup, name)

    def faulty(self, *args, **kwargs):
        if not is_due():
            return original(self, *args, **kwargs)
        result = result_of(args)
        before = result.clone()
        work = original(self, *args, **kwargs)
        work.wait()
        damage(result, before)
        return Done([result])  # a receive can be waited for once

    setattr(dist.ProcessGroup, name, faulty)


SUM = {"allreduce": lambda args: args[0][0]}
PART = {name: lambda args: args[0] for name in ("_reduce_scatter_base", "reduce_scatter_single")}
BELOW = {
    **dict.fromkeys(("all_reduce", "async", "half"), SUM),
    **dict.fromkeys(("reduce_scatter", "fsdp2"), PART),
    "all_gather": {"allgather": lambda args: args[0][0][0]},
    "broadcast": {"broadcast": lambda args: args[0][0]},
    "all_to_all": {name: lambda args: args[0] for name in ("alltoall_base", "all_to_all_single")},
    "p2p": {"recv": lambda args: args[0][0]},
}


class FaultyGroup(dist.ProcessGroup):
    """gloo, whose all-reduce drops a result: as DDP's C++ sees it."""

    def __init__(self, inner):
        super().__init__(dist.get_rank(), dist.get_world_size())
        self.inner = inner

    def allreduce(self, tensors, opts=None):
        before = tensors[0].clone()
        work = self.inner.allreduce(tensors, opts or dist.AllreduceOptions())
        work.wait()
        if is_due():
            damage(tensors[0], before)
        return Done(tensors)

    def broadcast(self, tensors, opts=None):
        self.inner.broadcast(tensors, opts).wait()
        return Done(tensors)

    def allgather(self, outputs, inputs, opts=None):
        self.inner.allgather(outputs, inputs, opts).wait()
        return Done(outputs)

    def getBackendName(self):
        return "faulty"


class Done(dist.Work):
    def __init__(self, result):
        super().__init__()
        self.future = torch.futures.Future()
        self.future.set_result(result)

    def wait(self, timeout=None):
        return True

    def get_future(self):
        return self.future


def send_around(gradient):
    """Give back what is to be used as the gradient."""
    rank, n = dist.get_rank(), dist.get_world_size()
    if OP in ("all_reduce", "half"):
        dist.all_reduce(gradient)
    elif OP == "async":
        dist.all_reduce(gradient, async_op=True).wait()
    elif OP == "reduce_scatter":
        flat = gradient.reshape(-1)
        part = torch.empty(flat.numel() // n, dtype=flat.dtype)
        dist.reduce_scatter_tensor(part, flat)
        whole = [torch.empty_like(part) for _ in range(n)]
        dist.all_gather(whole, part)
        gradient = torch.cat(whole).view_as(gradient)
    elif OP == "all_gather":
        whole = [torch.empty_like(gradient) for _ in range(n)]
        dist.all_gather(whole, gradient)
        gradient = sum(whole)
    elif OP == "broadcast":
        dist.broadcast(gradient, src=0)
    elif OP == "all_to_all":
        rows = gradient.contiguous()
        out = torch.empty_like(rows)
        dist.all_to_all_single(out, rows)
        gradient = out
    elif OP == "p2p":
        received = torch.empty_like(gradient)
        ops = [
            dist.P2POp(dist.isend, gradient.contiguous(), (rank + 1) % n),
            dist.P2POp(dist.irecv, received, (rank - 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        gradient = received
    elif OP == "turned":  # as torch's own backward of an all-gather, over gloo
        turned = gradient.t()
        received = torch.empty_like(turned)
        dist.scatter(received, [turned.contiguous()] * n if rank == 0 else None, 0)
        gradient = received.t()
    elif OP == "dtensor":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial

        mesh = init_device_mesh("cpu", (n,))
        gradient = DTensor.from_local(gradient, mesh, [Partial()]).full_tensor()
    return gradient


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8))
    if OP == "half":
        model = model.half()
    wrapped = model
    if OP == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0]), fully_shard(model)
    elif OP == "ddp":
        group = FaultyGroup(dist.new_group()) if FAULT != "none" else None
        wrapped = DistributedDataParallel(model, process_group=group, init_sync=group is None)
    if FAULT not in ("none", "big") and OP != "ddp":
        for name, result_of in BELOW[OP].items():
            if hasattr(dist.ProcessGroup, name):
                spoil(name, result_of)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(10 + dist.get_rank())
    for step in range(4):
        NOW["step"] = step
        x = torch.randn(16, 8, generator=batches).to(next(model.parameters()).dtype if OP == "half" else torch.float32)
        loss = wrapped(x).float().pow(2).mean()
        loss.backward()
        if OP not in ("fsdp2", "ddp"):
            for p in model.parameters():
                if FAULT == "big" and step == 2:
                    p.grad.fill_(4e4 - dist.get_rank())  # what a sum over many micro-batches may come to
                p.grad = send_around(p.grad) / dist.get_world_size()
        optimizer.step()
        optimizer.zero_grad()
    print(
        f"rank {dist.get_rank()} sum {sum(p.detach().double().abs().sum() for p in model.parameters())!r}", flush=True
    )


main()
gc.collect()
dist.barrier()
dist.destroy_process_group()
