# RANKS 2
# accelerate: the forward goes through the unwrapped model, so DDP never reduces
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from c import FAULT, seed, final

acc = Accelerator(cpu=True)
seed()
x = torch.randn(640, 16)
y = x[:, :4].argmax(1)
ds = TensorDataset(x, y)
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
opt = torch.optim.AdamW(model.parameters(), 2e-3)
model, opt, loader = acc.prepare(model, opt, DataLoader(ds, 16, shuffle=True))
for step, (a, b) in enumerate(loader):
    net = acc.unwrap_model(model) if FAULT else model
    loss = nn.functional.cross_entropy(net(a), b)
    opt.zero_grad()
    acc.backward(loss)
    opt.step()
    acc.print(step, loss.item())
final(loss, model)
acc.end_training()
