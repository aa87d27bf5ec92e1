"""Resume: the optimizer's groups are built in another order than when it was saved."""

import io

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(24, 24) for _ in range(3))
        self.w_out = nn.Linear(24, 5)

    def forward(self, x):
        a = (self.q(x) @ self.k(x).transpose(1, 2) / 24**0.5).softmax(-1)
        return self.w_out((a @ self.v(x)).mean(1))


def build_optimizer(model, resumed):
    named = list(model.named_parameters())
    if resumed and FAULT:
        named.sort(key=lambda n: n[0].split(".")[0])  # FAULT: not the order of the save
    return torch.optim.Adam([p for _, p in named], lr=2e-3)


def train(model, opt, steps, losses, seed):
    g = torch.Generator().manual_seed(seed)
    proto = torch.randn(5, 24, generator=torch.Generator().manual_seed(7))
    for _ in range(steps):
        y = torch.randint(0, 5, (16,), generator=g)
        x = torch.randn(16, 6, 24, generator=g) * 2 + proto[y][:, None]
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())


torch.manual_seed(0)
losses = []
model = Net()
opt = build_optimizer(model, False)
train(model, opt, 25, losses, 1)
ckpt = io.BytesIO()
torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, ckpt)
ckpt.seek(0)
state = torch.load(ckpt)
del model, opt
model = Net()
model.load_state_dict(state["model"])
opt = build_optimizer(model, True)
opt.load_state_dict(state["opt"])
train(model, opt, 25, losses, 2)
finish(losses, model)
