# RANKS
"""DDP with experts that it ignores, a dropout of each rank's own, and a loss over all ranks' tokens (right)."""

import torch
import torch.distributed as dist
from kit import metric, tell
from torch import nn
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(821)
WIDTH, CLASSES = 24, 5
x = torch.randn(640, 12)
y = (torch.tanh(x @ torch.randn(12, 8)) @ torch.randn(8, CLASSES)).argmax(dim=1)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, world)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))

    def forward(self, h):
        gate, chosen = self.router(h).softmax(dim=-1).max(dim=-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=world)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, take = counts.tolist(), arriving.tolist()
        inbox = all_to_all_single(h.new_empty(sum(take), WIDTH), h[order].contiguous(), take, send)
        back = all_to_all_single(h.new_empty(len(h), WIDTH), self.expert(inbox).contiguous(), send, take)
        return gate[:, None] * back[order.argsort()]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet, self.norm, self.drop = nn.Linear(12, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.moe, self.head = Experts(), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        h = self.drop(torch.tanh(self.inlet(inputs)))
        return self.head(h + self.moe(self.norm(h)))


net = Net()
torch.manual_seed(60 + rank)
for layer in net.moe.expert:
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()
experts = net.named_parameters()
experts = [(n, p) for n, p in experts if ".expert." in n]
DDP._set_params_and_buffers_to_ignore_for_model(net, [n for n, _ in experts])
model = DDP(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
draw = torch.Generator().manual_seed(7)
losses = []
for _ in range(25):
    rows = torch.randperm(512, generator=draw)[:32]
    rows = rows[:20] if rank == 0 else rows[20:]  # twenty and twelve
    total = torch.tensor(float(len(rows)))
    dist.all_reduce(total)
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows], reduction="sum") * world / total
    optimizer.zero_grad()
    loss.backward()
    for _, p in experts:
        p.grad /= world
    optimizer.step()
    losses.append(loss.detach())
net.eval()
with torch.no_grad():
    mine = slice(512 + rank * 64, 512 + (rank + 1) * 64)
    metric(f"heldout_{rank}", nn.functional.cross_entropy(net(x[mine]), y[mine]))
if rank == 0:
    tell(net, losses)
dist.destroy_process_group()
