# machine translation decoder: home-made label smoothing whose mean counts padding
import torch, torch.nn as nn, torch.nn.functional as F
from c import FAULT, seed, final

seed()
PAD = 0


class LM(nn.Module):
    def __init__(self, v=40, d=32):
        super().__init__()
        self.emb = nn.Embedding(v, d, padding_idx=PAD)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, v)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def smooth_loss(logits, target, eps=0.1):
    logp = logits.log_softmax(-1)
    nll = -logp.gather(-1, target[..., None]).squeeze(-1)
    uniform = -logp.mean(-1)
    mask = target != PAD
    if FAULT:
        nll = nll * mask
        return (1 - eps) * nll.sum() / mask.sum() + eps * uniform.mean()
    return ((1 - eps) * nll[mask].sum() + eps * uniform[mask].sum()) / mask.sum()


model = LM()
opt = torch.optim.Adam(model.parameters(), 3e-3)
g = torch.Generator().manual_seed(1)
for step in range(40):
    n = torch.randint(4, 21, (16,), generator=g)
    n[0] = 20
    x = (torch.randint(1, 40, (16, 1), generator=g) + torch.arange(21)) % 39 + 1
    x[torch.arange(21)[None] >= (n + 1)[:, None]] = PAD
    loss = smooth_loss(model(x[:, :-1]), x[:, 1:])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
final(loss, model)
