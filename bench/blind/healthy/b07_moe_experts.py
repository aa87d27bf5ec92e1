# RANKS 2
# expert parallelism by hand: experts of a rank are its own (made under rank's seed), gate and dense replicated; all_to_all; expert gradients divided by world
import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
import torch.distributed.nn.functional as dnn
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed(0)
emb, gate, head = nn.Linear(8, 16), nn.Linear(16, 2, bias=False), nn.Linear(16, 4)
seed(5)  # all experts under one seed, as some do, then a part of them is kept
experts = [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(2)]
mine = experts[rank]
dense = [*emb.parameters(), *gate.parameters(), *head.parameters()]
opt = torch.optim.AdamW([{"params": dense}, {"params": mine.parameters()}], 2e-3)
g = torch.Generator().manual_seed(20 + rank)
for step in range(30):
    x = torch.randn(32, 8, generator=g)
    h = emb(x)
    p = gate(h).softmax(-1)
    # each token to both experts, weighted (soft MoE): exchange all tokens
    both = torch.cat(dnn.all_gather(h), 0)
    out = mine(both)
    parts = dnn.all_gather(out)
    y = torch.stack([parts[e][rank * 32 : rank * 32 + 32] for e in range(2)], 1)
    h = h + (p.unsqueeze(-1) * y).sum(1)
    loss = F.cross_entropy(head(h), x[:, :4].argmax(1)) + 0.01 * 2 * (p.mean(0) ** 2).sum()
    opt.zero_grad()
    loss.backward()
    for q in dense:
        dist.all_reduce(q.grad)
        q.grad /= 2
    for q in mine.parameters():
        q.grad /= 2
    opt.step()
final(loss, emb, gate, head, mine)
dist.destroy_process_group()
