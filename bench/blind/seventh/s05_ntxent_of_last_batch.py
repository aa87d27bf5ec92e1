"""SimCLR on vectors: two noisy views of each sample, and NT-Xent."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(5)
BATCH = 32
centres = torch.randn(40, 24)
data = centres[torch.randint(40, (236,))] + 0.3 * torch.randn(236, 24)


class NTXent(nn.Module):
    def __init__(self, batch_size, temperature=0.2):
        super().__init__()
        self.batch_size, self.temperature = batch_size, temperature

    def forward(self, first, second):
        z = nn.functional.normalize(torch.cat([first, second]), dim=1)
        count = len(z)
        similar = z @ z.T / self.temperature
        similar = similar.masked_fill(torch.eye(count, dtype=torch.bool), -1e9)
        if FAULT:
            other = (torch.arange(count) + self.batch_size) % count
        else:
            other = (torch.arange(count) + len(first)) % count
        return nn.functional.cross_entropy(similar, other)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 32))
        self.project = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        return self.project(self.body(x))


def views(x):
    def view():
        return x * (torch.rand_like(x) > 0.2) + 0.2 * torch.randn_like(x)

    return view(), view()


model, criterion = Encoder(), NTXent(BATCH)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = torch.utils.data.DataLoader(data, batch_size=BATCH, shuffle=True)
losses = []
for _epoch in range(6):
    for batch in loader:
        first, second = views(batch)
        loss = criterion(model(first), model(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
with torch.no_grad():
    first, second = views(data)
    a, b = (nn.functional.normalize(model(v), dim=1) for v in (first, second))
    metric("alignment", (a * b).sum(1).mean())
tell(model, losses)
