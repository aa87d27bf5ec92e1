# recommender: sparse embeddings with SparseAdam beside a dense tower with Adagrad; BPR with sampled negatives
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
U, I = nn.Embedding(200, 16, sparse=True), nn.Embedding(500, 16, sparse=True)
bias = nn.EmbeddingBag(500, 1, mode="sum", sparse=True)
tower = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
so = torch.optim.SparseAdam([*U.parameters(), *I.parameters(), *bias.parameters()], 1e-2)
do = torch.optim.Adagrad(tower.parameters(), 1e-2)
for step in range(40):
    u, i = torch.randint(0, 200, (64,)), torch.randint(0, 500, (64,))
    j = torch.randint(0, 500, (64,))
    w = tower(U(u))
    off = torch.arange(64)
    pos = (w * I(i)).sum(-1) + bias(i, off).squeeze(-1)
    neg = (w * I(j)).sum(-1) + bias(j, off).squeeze(-1)
    loss = -F.logsigmoid(pos - neg).mean()
    so.zero_grad()
    do.zero_grad()
    loss.backward()
    so.step()
    do.step()
final(loss, U, I, bias, tower)
