"""accelerate: a run that is stopped in the middle of an epoch and resumed with skip_first_batches."""

import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from kit import FAULT, OUT, metric, tell
from torch import nn

set_seed(814)
x = torch.randn(448, 16)
y = (torch.tanh(x @ torch.randn(16, 6)) @ torch.randn(6, 4)).argmax(dim=1)
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
PATH = os.path.join(OUT, "state")
EPOCHS, STOP_AT = 4, 8


def build():
    set_seed(3)
    net = nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 4))
    optimizer = torch.optim.AdamW(net.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * 12)
    dataset = torch.utils.data.TensorDataset(x[:384], y[:384], torch.arange(384))
    loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)  # 12 batches
    return accelerator.prepare(net, optimizer, schedule, loader)


losses, seen = [], {}


def step(model, optimizer, schedule, batch, epoch):
    inputs, targets, index = batch
    loss = nn.functional.cross_entropy(model(inputs), targets)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    seen.setdefault(epoch, []).extend(index.tolist())


model, optimizer, schedule, loader = build()
for number, batch in enumerate(loader):
    if number == STOP_AT:
        break
    step(model, optimizer, schedule, batch, 0)
accelerator.save_state(PATH)

accelerator.free_memory()
model, optimizer, schedule, loader = build()  # as a new process would
accelerator.load_state(PATH)
resumed = accelerator.skip_first_batches(loader, STOP_AT)
for epoch in range(EPOCHS):
    if FAULT:
        active = resumed
    else:
        active = resumed if epoch == 0 else loader
    for batch in active:
        step(model, optimizer, schedule, batch, epoch)

print("NOTE seen per epoch", {e: len(set(s)) for e, s in seen.items()}, "updates", len(losses))
model.eval()
with torch.no_grad():
    metric("heldout", nn.functional.cross_entropy(model(x[384:]), y[384:]))
tell(model, losses)
