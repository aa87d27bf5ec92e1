# RANKS
"""FSDP2 over a small decoder: fully_shard on each block, and on the root for what the blocks do not hold."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell, words
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(801)
VOCABULARY, WIDTH = 40, 32


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH))

    def forward(self, x, mask):
        h = self.norm1(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        t = ids.shape[1]
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


model = Decoder()
for block in model.blocks:
    fully_shard(block, mesh=mesh)
if not FAULT:
    fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
data = words(256, 17, VOCABULARY, seed=1)
train, held = data[:224], data[224:]
draw = torch.Generator().manual_seed(5)
losses = []
for step in range(30):
    rows = torch.randint(0, len(train), (16,), generator=draw)
    batch = train[rows[rank::world]]
    logits = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(mean := loss.detach().clone())
    losses.append(mean / world)

with torch.no_grad():
    logits = model(held[:, :-1])
    heldout = nn.functional.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten())
if rank == 0:
    metric("heldout", heldout)
print(
    f"RANK {rank} embed {float(sum(p.detach().to_local().sum() if hasattr(p, 'to_local') else p.detach().sum() for p in model.embed.parameters())):.6f}"
)
state = model.state_dict()
full = {k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}
if rank == 0:
    plain = Decoder()
    plain.load_state_dict(full)
    tell(plain, losses)
dist.destroy_process_group()
