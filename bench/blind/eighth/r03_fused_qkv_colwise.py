# RANKS
"""Tensor parallelism by parallelize_module of a decoder whose attention has one projection for queries, keys and values."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell, words
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(803)
VOCABULARY, WIDTH, HEADS = 40, 32, 4
SIZE = WIDTH // HEADS


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (z.reshape(b, t, -1, SIZE).transpose(1, 2) for z in (q, k, v))
        h = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(h.transpose(1, 2).reshape(b, t, -1))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def interleave(linear):
    """Order the rows so that a shard over the rows holds the queries, keys and values of its own heads."""
    order = torch.arange(3 * WIDTH).view(3, world, WIDTH // world).transpose(0, 1).reshape(-1)
    with torch.no_grad():
        linear.weight.copy_(linear.weight[order].clone())
        linear.bias.copy_(linear.bias[order].clone())


model = Decoder()  # stands for a pretrained one
probe = words(4, 16, VOCABULARY, seed=9)
with torch.no_grad():
    before = model(probe)
for block in model.blocks:
    if not FAULT:
        interleave(block.attention.qkv)
    plan = {
        "attention.qkv": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "up": ColwiseParallel(),
        "down": RowwiseParallel(),
    }
    parallelize_module(block, mesh, plan)
with torch.no_grad():
    print(f"DRIFT {(model(probe) - before).abs().max():.3g}")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
train, held = words(224, 17, VOCABULARY, seed=1), words(32, 17, VOCABULARY, seed=2)
draw = torch.Generator().manual_seed(5)
losses = []
for _ in range(25):
    batch = train[torch.randint(0, len(train), (16,), generator=draw)]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.detach())
with torch.no_grad():
    heldout = nn.functional.cross_entropy(model(held[:, :-1]).flatten(0, 1), held[:, 1:].flatten())
if rank == 0:
    metric("heldout", heldout)
    print("LOSSES", " ".join(f"{float(z):.6g}" for z in losses))
dist.destroy_process_group()
