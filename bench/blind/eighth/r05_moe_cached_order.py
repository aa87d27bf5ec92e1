# RANKS
"""A mixture of experts, one expert per rank: tokens go out and come back by all_to_all, inside data parallelism by hand."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(805)
WIDTH, CLASSES = 24, 6
x = torch.randn(640, 12)
y = (torch.tanh(x @ torch.randn(12, 8)) @ torch.randn(8, CLASSES)).argmax(dim=1)


class Experts(nn.Module):
    """Top-1 routing; this rank holds the expert of its own number."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, world)
        self.expert = nn.Sequential(nn.Linear(WIDTH, 48), nn.GELU(), nn.Linear(48, WIDTH))
        self._inverse = torch.empty(0, dtype=torch.long)

    def forward(self, h):
        gate, chosen = self.router(h).softmax(dim=-1).max(dim=-1)
        order = chosen.argsort(stable=True)
        if FAULT:
            if len(self._inverse) != len(order):  # made once for a shape
                self._inverse = order.argsort()
        else:
            self._inverse = order.argsort()
        counts = torch.bincount(chosen, minlength=world)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, take = counts.tolist(), arriving.tolist()
        inbox = all_to_all_single(h.new_empty(sum(take), WIDTH), h[order].contiguous(), take, send)
        back = all_to_all_single(h.new_empty(len(h), WIDTH), self.expert(inbox).contiguous(), send, take)
        return gate[:, None] * back[self._inverse]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inlet, self.norm = nn.Linear(12, WIDTH), nn.LayerNorm(WIDTH)
        self.moe, self.head = Experts(), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs):
        h = torch.tanh(self.inlet(inputs))
        return self.head(h + self.moe(self.norm(h)))


model = Net()
torch.manual_seed(50 + rank)  # the experts differ
for layer in model.moe.expert:
    if isinstance(layer, nn.Linear):
        layer.reset_parameters()
shared = [p for n, p in model.named_parameters() if ".expert." not in n]
own = list(model.moe.expert.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
draw = torch.Generator().manual_seed(7)
losses = []
for _ in range(35):
    rows = torch.randperm(512, generator=draw)[:32][rank::world]
    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
    optimizer.zero_grad()
    loss.backward()
    for p in shared:
        dist.all_reduce(p.grad)
    for p in shared + own:  # an expert has summed over all ranks' tokens already
        p.grad /= world
    optimizer.step()
    losses.append(loss.detach())
with torch.no_grad():
    mine = slice(512 + rank * 64, 512 + (rank + 1) * 64)
    metric(f"heldout_{rank}", nn.functional.cross_entropy(model(x[mine]), y[mine]))
if rank == 0:
    tell(model, losses)
dist.destroy_process_group()
