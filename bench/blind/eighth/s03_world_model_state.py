"""A world model over long streams, trained by truncated backpropagation: the state is carried from chunk to chunk."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(103)
STREAMS, CHUNK, LENGTH = 8, 12, 12 * 50


class WorldModel(nn.Module):
    def __init__(self, features=3, width=24):
        super().__init__()
        self.encode = nn.Linear(features, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.decode = nn.Linear(width, features)
        self.state = None

    def reset(self):
        self.state = None

    def forward(self, x):
        state = None if self.state is None else self.state.detach()
        h, self.state = self.cell(torch.tanh(self.encode(x)), state)
        return self.decode(h)


def streams(seed):
    g = torch.Generator().manual_seed(seed)
    phase = 6.28 * torch.rand(STREAMS, 1, 3, generator=g)
    speed = 0.05 + 0.3 * torch.rand(STREAMS, 1, 3, generator=g)
    t = torch.arange(LENGTH + 1)[None, :, None]
    return torch.sin(phase + speed * t) + 0.05 * torch.randn(STREAMS, LENGTH + 1, 3, generator=g)


@torch.no_grad()
def evaluate(model, data, chunks=4):
    kept = model.state
    model.eval()
    model.reset()
    total = 0.0
    for c in range(chunks):
        part = data[:, c * CHUNK : (c + 1) * CHUNK + 1]
        total += float(nn.functional.mse_loss(model(part[:, :-1]), part[:, 1:]))
    model.train()
    if not FAULT:
        model.state = kept
    return total / chunks


train, held = streams(1), streams(2)
model = WorldModel()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
losses, scores = [], []
for step in range(50):
    part = train[:, step * CHUNK : (step + 1) * CHUNK + 1]
    loss = nn.functional.mse_loss(model(part[:, :-1]), part[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    losses.append(loss.detach())
    if step % 15 == 14:
        scores.append(evaluate(model, held))

metric("held", scores[-1])
tell(model, losses)
