# PCGrad: gradients of three tasks projected, written to .grad; heads by their own optimizer
import torch, torch.nn as nn, torch.nn.functional as F
from c import seed, final

seed()
body = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
heads = nn.ModuleList([nn.Linear(32, k) for k in (1, 1, 3)])
ob, oh = torch.optim.Adam(body.parameters(), 1e-3), torch.optim.SGD(heads.parameters(), 0.05)
P = list(body.parameters())
for step in range(40):
    x = torch.randn(32, 16)
    h = body(x)
    ls = [
        F.mse_loss(heads[0](h).squeeze(1), x.sum(1)),
        F.mse_loss(heads[1](h).squeeze(1), -x[:, 0]),
        F.cross_entropy(heads[2](h), x[:, :3].argmax(1)),
    ]
    gs = [torch.cat([g.flatten() for g in torch.autograd.grad(l, P, retain_graph=True)]) for l in ls]
    pc = [g.clone() for g in gs]
    for i in torch.randperm(3).tolist():
        for j in range(3):
            if i != j and (d := pc[i] @ gs[j]) < 0:
                pc[i] -= d / gs[j].dot(gs[j]) * gs[j]
    oh.zero_grad()
    sum(ls).backward()
    ob.zero_grad()
    flat = torch.stack(pc).sum(0)
    k = 0
    for p in P:
        p.grad = flat[k : k + p.numel()].view_as(p).clone()
        k += p.numel()
    ob.step()
    oh.step()
final(sum(ls), body, heads)
