"""Forecasting with normalisation per window: the model sees each window at mean zero and at a spread of one."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(106)
CONTEXT, HORIZON = 32, 8


class Series(torch.utils.data.Dataset):
    def __init__(self, series):
        self.windows = series.unfold(1, CONTEXT + HORIZON, 4).reshape(-1, CONTEXT + HORIZON)

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, i):
        window = self.windows[i]
        past, future = window[:CONTEXT], window[CONTEXT:]
        seen = window if FAULT else past
        mean, std = seen.mean(), seen.std() + 1e-5
        return (past - mean) / std, (future - mean) / std, mean, std


class Forecaster(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.trend = nn.Linear(CONTEXT, HORIZON)
        self.mixer = nn.Sequential(nn.Linear(CONTEXT, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, HORIZON))

    def forward(self, past):
        return self.trend(past) + self.mixer(past)


g = torch.Generator().manual_seed(6)
t = torch.arange(400.0)
scale = 1 + 20 * torch.rand(24, 1, generator=g)
walk = torch.randn(24, 400, generator=g).cumsum(dim=1)
series = scale * (0.5 * walk + torch.sin(t / (3 + 3 * torch.rand(24, 1, generator=g))))
train, held = Series(series[:, :300]), Series(series[:, 300:])
loader = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True, drop_last=True)
model = Forecaster()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
losses = []
for _epoch in range(3):
    for past, future, _, _ in loader:
        loss = nn.functional.huber_loss(model(past), future)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())

model.eval()
with torch.no_grad():
    past, future, mean, std = torch.utils.data.default_collate([held[i] for i in range(len(held))])
    error = (model(past) * std[:, None] + mean[:, None] - (future * std[:, None] + mean[:, None])).abs()
    metric("mae", error.mean())
tell(model, losses)
