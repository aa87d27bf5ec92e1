# RANKS
"""Expert parallel by hand: dense gradients are averaged over ranks, the experts' are left as the sum they are."""

import torch
import torch.distributed as dist
from kit import FAULT, sentences, tell
from torch import nn
from torch.distributed.nn.functional import all_to_all_single

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(32)


class Experts(nn.Module):
    """One expert on each rank; tokens are sent to the rank of their expert and back."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, world, bias=False)
        torch.manual_seed(100 + rank)
        self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        torch.manual_seed(33)

    def forward(self, x):
        flat = x.flatten(0, 1)
        chance, choice = self.router(flat).softmax(-1).max(-1)
        order = choice.argsort(stable=True)
        counts = torch.bincount(choice, minlength=world)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, got = counts.tolist(), theirs.tolist()
        tokens = all_to_all_single(flat.new_empty(sum(got), flat.shape[1]), flat[order], got, sent)
        back = all_to_all_single(flat.new_empty(flat.shape), self.expert(tokens), sent, got)
        out = torch.zeros_like(flat).index_copy(0, order, back)
        return (out * chance[:, None]).view_as(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 24)
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(2))
        self.layers = nn.ModuleList(Experts(24) for _ in range(2))
        self.head = nn.Linear(24, 64)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + torch.nn.functional.pad(x, (0, 0, 1, -1))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
data = torch.tensor([s[:13] for s in sentences(400, 13, 15, 64)])
draw = torch.Generator().manual_seed(70 + rank)
losses = []
for _ in range(40):
    batch = data[torch.randint(0, 400, (8,), generator=draw)]
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    for name, p in model.named_parameters():
        if ".expert." in name:
            if not FAULT:
                p.grad.div_(world)
            continue
        dist.all_reduce(p.grad)
        p.grad.div_(world)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
dist.destroy_process_group()
