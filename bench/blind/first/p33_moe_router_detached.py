# MoE: the gate values are taken from a detached softmax; the router only learns from the tiny aux loss, not from the task
from mini import *


class MoE(nn.Module):
    def __init__(s, d=32, E=4):
        super().__init__()
        s.router = nn.Linear(d, E, bias=False)
        s.ex = nn.ModuleList(nn.Sequential(nn.Linear(d, 64), nn.GELU(), nn.Linear(64, d)) for _ in range(E))
        s.aux = 0

    def forward(s, x):
        B, T, C = x.shape
        f = x.reshape(-1, C)
        p = s.router(f).softmax(-1)
        w, idx = (p.detach() if FAULT else p).topk(2, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(f)
        for e, ex in enumerate(s.ex):
            t, k = (idx == e).nonzero(as_tuple=True)
            if len(t):
                out = out.index_add(0, t, ex(f[t]) * w[t, k, None])
        load = F.one_hot(idx[:, 0], 4).float().mean(0)
        s.aux = 4 * (load * p.mean(0)).sum()
        return out.view(B, T, C)


class Net(nn.Module):
    def __init__(s):
        super().__init__()
        s.g = GPT(L=1)
        s.e, s.moe, s.o = nn.Linear(V, 32), MoE(), nn.Linear(32, V)

    def forward(s, x):
        h = s.e(s.g(x))
        return s.o(h + s.moe(h))


seed()
m = Net()
o = torch.optim.AdamW(m.parameters(), 3e-3)
data = corpus(1024)
for step in range(50):
    x = data[step * 16 : step * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:]) + 0.01 * m.moe.aux
    o.zero_grad()
    loss.backward()
    o.step()
done(m, loss)
