"""Half precision with a loss scaler, and clipping by the norm."""

import torch
from kit import FAULT, metric, tell
from torch import nn

torch.manual_seed(3)
x = torch.randn(1024, 20)
y = torch.sin(x[:, :4]).sum(1) + 0.5 * x[:, 4] * x[:, 5]


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, h):
        return h + self.down(nn.functional.gelu(self.up(self.norm(h))))


model = nn.Sequential(nn.Linear(20, 48), Residual(48), Residual(48), nn.LayerNorm(48), nn.Linear(48, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:768], y[:768]), batch_size=64, shuffle=True)
losses = []
for _epoch in range(5):
    for xb, yb in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(xb).squeeze(-1)
        loss = nn.functional.mse_loss(out.float(), yb)
        scaler.scale(loss).backward()
        if not FAULT:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=5.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
with torch.no_grad():
    metric("error", nn.functional.mse_loss(model(x[768:]).squeeze(-1), y[768:]))
tell(model, losses)
