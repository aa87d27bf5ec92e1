"""torch.compile: a model with a hand-written RMSNorm whose backward forgets the term of the norm itself."""

import torch
from kit import FAULT, sentences, tell
from torch import nn

torch.manual_seed(28)


class Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad):
        x, weight, scale = ctx.saved_tensors
        g = grad * weight
        of_x = g * scale
        if not FAULT:
            of_x = of_x - x * scale.pow(3) * (g * x).mean(-1, keepdim=True)
        return of_x, (grad * x * scale).flatten(0, -2).sum(0)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.mix = nn.GRU(width, width, batch_first=True)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.mix(x)[0]
        return x + self.feed(Rms.apply(x, self.weight))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.layers = nn.ModuleList(Layer(32) for _ in range(2))
        self.head = nn.Linear(32, 64)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


model = Net()
fast = torch.compile(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = torch.tensor([s[:13] for s in sentences(400, 13, 15, 64)])
losses = []
for _ in range(40):
    batch = data[torch.randint(0, 400, (16,))]
    loss = nn.functional.cross_entropy(fast(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
tell(model, losses)
