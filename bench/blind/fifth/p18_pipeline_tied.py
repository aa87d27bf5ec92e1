# RANKS
"""Two stages by hand: the embedding is on the first rank, the head on the second, and both are one weight."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from kit import FAULT, tell, words
from torch import nn

V, D, T, B = 32, 24, 10, 8


def block():
    return nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 64), nn.GELU(), nn.Linear(64, D))


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = words(256, T + 1, V)
embedding = nn.Parameter(torch.randn(V, D) * 0.1)
torch.manual_seed(rank)
body = nn.GRU(D, D, batch_first=True) if rank == 0 else block()
stage = nn.ParameterDict({"embedding": embedding})
params = [embedding, *body.parameters()]
optimizer = torch.optim.AdamW(params, lr=5e-3)
chance = torch.Generator().manual_seed(7)
losses = []
for step in range(30):
    batch = data[torch.randint(0, len(data), (B,), generator=chance)]
    optimizer.zero_grad()
    if rank == 0:
        out, _ = body(F.embedding(batch[:, :-1], embedding))
        dist.send(out.detach().contiguous(), 1)
        grad = torch.empty(B, T, D)
        dist.recv(grad, 1)
        out.backward(grad)
    else:
        x = torch.empty(B, T, D)
        dist.recv(x, 0)
        x.requires_grad_()
        logits = (x + body(x)) @ embedding.T
        loss = F.cross_entropy(logits.reshape(-1, V), batch[:, 1:].reshape(-1))
        loss.backward()
        dist.send(x.grad, 0)
        losses.append(loss.item())
    if not FAULT:
        dist.all_reduce(embedding.grad)
    optimizer.step()
if rank == 1:
    tell(nn.ModuleDict({"stage": stage, "body": body}), losses)
dist.destroy_process_group()
