"""A GPT of four blocks, trained for a few steps in one of many layouts; each option plants one difference.

layouts_job.py LAYOUT [OPTION=VALUE ...]     LAYOUT: one, ddp, fsdp, tp, sp, pp, fsdp-tp
"""

import gc
import hashlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

VOCABULARY, WIDTH, HEADS, LENGTH, N_BLOCKS, BATCH, STEPS = 80, 32, 4, 12, 4, 8, 2
LAYOUT = sys.argv[1]
OPTIONS = dict(arg.partition("=")[::2] for arg in sys.argv[2:])


def option(name, default=0.0):
    return float(OPTIONS.get(name, default))


class Attention(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        for each in (self.q, self.k, self.v) if number == 1 and option("no_bias") else ():
            each.bias = None
        self.o = nn.Linear(WIDTH, WIDTH)
        self.number = number

    def forward(self, x):
        n, t, _ = x.shape
        q, k, v = (f(x).view(n, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        q, k = rotated(q, self.number), rotated(k, self.number)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=option("scale", 1.0) / self.divisor)
        return self.o(y.transpose(1, 2).reshape(n, t, -1))

    @property
    def divisor(self):
        return (WIDTH // HEADS) ** 0.5


def rotated(x, number):
    t, d = x.shape[-2:]
    angle = torch.outer(torch.arange(t), 100.0 ** (-torch.arange(0, d, 2) / d))
    cos, sin = angle.cos(), angle.sin()
    if option("interleaved") and number == 2:
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class Mlp(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.act = nn.GELU(approximate="tanh" if option("tanh") and number == 2 else "none")

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class WithAuxiliary(torch.autograd.Function):
    """Hands values on and adds the gradient of an auxiliary loss to theirs, as mixtures of experts do."""

    @staticmethod
    def forward(ctx, x, auxiliary):
        ctx.save_for_backward(auxiliary)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        (auxiliary,) = ctx.saved_tensors
        return grad, torch.full_like(auxiliary, option("auxiliary_scale", 1.0))


class Block(nn.Module):
    def __init__(self, number, local):
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.ln2 = nn.LayerNorm(WIDTH, eps=option("eps", 1e-5) if number == 2 else 1e-5)
        self.attn, self.mlp = Attention(number), Mlp(number)
        self.gate = nn.Linear(WIDTH, 1) if option("gate") else None
        self.factor = 1.0 / (1 + (local if option("local_index") else number))  # as in query-key layer scaling

    def forward(self, x):
        x = x + self.attn(self.ln1(x)) * self.factor
        h = self.ln2(x)
        if self.gate is None:
            return x + self.mlp(h)
        share = self.gate(h).sigmoid()
        share = WithAuxiliary.apply(share, 0.01 * (share - 0.3).square().mean())
        return x + self.mlp(h) * share


class Gpt(nn.Module):
    def __init__(self, blocks=range(N_BLOCKS)):
        super().__init__()
        is_first, is_last = 0 in blocks, N_BLOCKS - 1 in blocks
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleDict({str(i): Block(i, i % len(blocks)) for i in range(N_BLOCKS)})
        self.ln = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if option("head_std"):
            nn.init.normal_(self.head.weight, 0.0, option("head_std"))
        if option("small_activations"):
            nn.init.normal_(self.emb.weight, 0.0, option("small_activations"))
        if not is_first:
            self.emb = None
        if not is_last:
            self.ln = self.head = None
        for i in range(N_BLOCKS):
            if i not in blocks:
                del self.blocks[str(i)]

    def forward(self, ids):
        x = self.emb(ids) if self.emb is not None else ids
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.ln(x)) if self.head is not None else x


def plan(with_sequence):
    found = {}
    if with_sequence:
        found["emb"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))
        found["ln"] = SequenceParallel()
        found["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    for i in range(N_BLOCKS):
        of = f"blocks.{i}"
        found |= {f"{of}.attn.{name}": ColwiseParallel() for name in "qkv"} | {f"{of}.mlp.up": ColwiseParallel()}
        if not with_sequence:
            found |= {f"{of}.attn.o": RowwiseParallel(), f"{of}.mlp.down": RowwiseParallel()}
            continue
        found |= {f"{of}.ln1": SequenceParallel(), f"{of}.ln2": SequenceParallel()}
        for part in ("attn", "mlp"):
            found[f"{of}.{part}"] = PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),), use_local_output=True
            )
        found |= {
            f"{of}.attn.o": RowwiseParallel(output_layouts=Shard(1)),
            f"{of}.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        }
    return found


def sharded(net, mesh):
    for block in net.blocks.values():
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def tokens(step):
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    targets = ids[:, 1:].clone()
    if option("padding"):
        targets[: BATCH // 2, 2:] = -100
    return ids[:, :-1], targets


def mine(batch, position, size):
    if option("interleave"):  # as DistributedSampler does
        return tuple(t[position::size] for t in batch)
    if option("uneven") and size > 1:
        return tuple(t.split([3, len(t) - 3])[position] for t in batch)
    return tuple(t.chunk(size)[position] for t in batch)


def loss_of(logits, targets):
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), targets.reshape(-1))


def optimizer_of(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def train_alone_or_parallel(rank, world):
    net, size, position = Gpt(), 1, 0
    if LAYOUT == "ddp":
        net, size, position = DistributedDataParallel(net), world, rank
        if option("summed"):
            net.register_comm_hook(
                None,
                lambda _, bucket: (
                    dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])
                ),
            )
    elif LAYOUT == "fsdp":
        net, size, position = sharded(net, init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))), world, rank
    elif LAYOUT in ("tp", "sp"):
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        parallelize_module(net, mesh, plan(LAYOUT == "sp"))
    elif LAYOUT == "fsdp-tp":
        mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, mesh["tp"], plan(False))
        net, size, position = sharded(net, mesh["dp"]), world // 2, rank // 2
    optimizer = optimizer_of(net.parameters())
    n_parts = int(option("accumulate", 1))
    for step in range(STEPS):
        for part in range(n_parts):
            ids, targets = mine(tuple(t.chunk(n_parts)[part] for t in tokens(step)), position, size)
            loss = loss_of(net(ids), targets)
            if option("only_first") and part:
                kept = [p.grad.clone() for p in net.parameters()]
            loss.backward()
            if option("only_first") and part:
                for p, grad in zip(net.parameters(), kept, strict=True):
                    p.grad = grad
        if option("not_reduced"):
            for name, p in net.named_parameters():
                if ".ln" in name:
                    p.grad = DTensor.from_local(p.grad.to_local(), p.device_mesh, [Replicate()], run_check=False)
        if n_parts > 1:
            for p in net.parameters():
                p.grad /= n_parts
        optimizer.step()
        optimizer.zero_grad()
    said(net, rank)


def train_pipeline(rank, world):
    blocks = range(rank * N_BLOCKS // world, (rank + 1) * N_BLOCKS // world)
    net = Gpt(blocks)
    stage = PipelineStage(net, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, 2, loss_fn=loss_of)
    optimizer = optimizer_of(net.parameters())
    for step in range(STEPS):
        ids, targets = tokens(step)
        schedule.step(*([ids] if rank == 0 else []), **({"target": targets} if rank == world - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    said(net, rank)


def said(net, rank):
    """What training made of the parameters here, to the bit."""
    parameters = [p.to_local() if hasattr(p, "to_local") else p for p in net.parameters()]
    bits = b"".join(p.detach().numpy().tobytes() for p in parameters)
    print(f"rank {rank} bits {hashlib.sha256(bits).hexdigest()}", flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    if LAYOUT == "pp":
        train_pipeline(rank, world)
    else:
        train_alone_or_parallel(rank, world)


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
