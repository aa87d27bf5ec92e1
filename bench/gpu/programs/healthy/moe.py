from common import *


class MoE(nn.Module):
    def __init__(self, w=64, n=4):
        super().__init__()
        self.r = nn.Linear(w, n, bias=False)
        self.e = nn.ModuleList([nn.Sequential(nn.Linear(w, 128), nn.GELU(), nn.Linear(128, w)) for _ in range(n)])
        self.aux = 0

    def forward(self, x):
        f = x.flatten(0, 1)
        p = self.r(f.float()).softmax(-1)
        v, k = p.topk(2, -1)
        y = torch.zeros_like(f)
        for j, e in enumerate(self.e):
            t, c = (k == j).nonzero(as_tuple=True)
            if t.numel():
                y = y.index_add(0, t, (e(f[t]) * v[t, c, None]).to(y.dtype))
        self.aux = (p.mean(0) * F.one_hot(k[:, 0], len(self.e)).float().mean(0)).sum() * len(self.e)
        return x + y.view_as(x)


emb, moe, head = nn.Embedding(512, 64).to(D), MoE().to(D), nn.Linear(64, 512).to(D)
ps = [*emb.parameters(), *moe.parameters(), *head.parameters()]
o = torch.optim.AdamW(ps, lr=2e-3)
for i in range(25):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(head(moe(emb(ids))), ids) + 0.01 * moe.aux
    o.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(ps, 1.0)
    o.step()
    said(i, loss)
done(moe)
