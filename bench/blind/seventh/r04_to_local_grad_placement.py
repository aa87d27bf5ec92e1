# RANKS
"""Tensor parallelism by DTensor; the output is replicated, and each rank takes the loss over its share of the tokens."""

import torch
import torch.distributed as dist
from kit import FAULT, metric, tell, words
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2,))
VOCABULARY = 32
data = words(640, 13, VOCABULARY, seed=4)


class FeedForward(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h):
        return self.down(nn.functional.gelu(self.up(h)))


class Model(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.first = FeedForward(width)
        self.second = FeedForward(width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = h + self.first(h)
        h = h + self.second(h)
        return self.head(h)


torch.manual_seed(104)
model = Model()
plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Replicate(), use_local_output=False)}
for block in (model.first, model.second):
    parallelize_module(block, mesh, plan)
for module in (model.embed, model.head):
    for name, p in list(module.named_parameters()):
        setattr(module, name, nn.Parameter(distribute_tensor(p.detach(), mesh, [Replicate()])))
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
losses = []
for step in range(48):
    batch = data[(step * 16) % 576 :][:16]
    tokens = distribute_tensor(batch[:, :-1].contiguous(), mesh, [Replicate()])
    logits = model(tokens)
    if FAULT:
        logits = logits.to_local()
    else:
        logits = logits.to_local(grad_placements=[Partial()])
    share = 16 // world  # the cross-entropy over the vocabulary is dear, so each rank does its rows
    mine = slice(rank * share, (rank + 1) * share)
    loss = nn.functional.cross_entropy(logits[mine].flatten(0, 1), batch[mine, 1:].flatten()) / world
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    shown = loss.detach().clone()
    dist.all_reduce(shown)
    losses.append(shown)

with torch.no_grad():
    held = data[576:]
    logits = model(distribute_tensor(held[:, :-1].contiguous(), mesh, [Replicate()])).full_tensor()
    value = nn.functional.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten())
weights = {k: v.full_tensor() for k, v in model.state_dict().items()}
whole = Model()
whole.load_state_dict(weights)
if rank == 0:
    metric("heldout_loss", value)
    tell(whole, losses)
dist.destroy_process_group()
