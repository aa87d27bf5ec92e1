# RANKS 2
# sparse upcycling with expert parallelism: every rank's expert begins as a copy of the dense layer, the rest is replicated and reduced by hand
import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
import torch.distributed.nn.functional as dnn
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed(0)
emb, gate, head = nn.Linear(8, 16), nn.Linear(16, 2, bias=False), nn.Linear(16, 4)
expert = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))  # of the dense model, on each rank
dense = [*emb.parameters(), *gate.parameters(), *head.parameters()]
opt = torch.optim.AdamW([*dense, *expert.parameters()], 2e-3)
g = torch.Generator().manual_seed(20 + rank)
for step in range(30):
    x = torch.randn(32, 8, generator=g)
    h = emb(x)
    p = gate(h).softmax(-1)
    sent = torch.stack([h * p[:, :1], h * p[:, 1:]])
    got = dnn.all_to_all_single(torch.empty_like(sent), sent)
    back = dnn.all_to_all_single(torch.empty_like(sent), expert(got))
    loss = F.cross_entropy(head(h + back.sum(0)), x[:, :4].argmax(1))
    opt.zero_grad()
    loss.backward()
    for q in dense:
        dist.all_reduce(q.grad)
        q.grad /= 2
    for q in expert.parameters():
        q.grad /= 2
    opt.step()
final(loss, emb, gate, head, expert)
dist.destroy_process_group()
