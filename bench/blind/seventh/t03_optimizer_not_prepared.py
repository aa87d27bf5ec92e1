"""accelerate with gradient accumulation, as in its guide."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from kit import FAULT, metric, tell
from torch import nn

set_seed(303)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
x = torch.randn(1280, 20)
y = (torch.tanh(x @ torch.randn(20, 12)) @ torch.randn(12, 6)).argmax(dim=1)


def build():
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 6))
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=72)
    return model, optimizer, schedule


model, optimizer, schedule = build()
dataset = torch.utils.data.TensorDataset(x[:1152], y[:1152])
loader = torch.utils.data.DataLoader(dataset, batch_size=16, shuffle=True)
if FAULT:
    model, loader, schedule = accelerator.prepare(model, loader, schedule)
else:
    model, loader, optimizer, schedule = accelerator.prepare(model, loader, optimizer, schedule)

losses = []
model.train()
for epoch in range(1 if FAULT else 4):  # both twins make 72 updates
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            losses.append(loss.detach())

model.eval()
with torch.no_grad():
    metric("heldout_loss", nn.functional.cross_entropy(model(x[1152:]), y[1152:]))
tell(accelerator.unwrap_model(model), losses)
