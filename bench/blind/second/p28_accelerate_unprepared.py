# accelerate: the optimizer was not prepared, so it steps on every micro-batch of an accumulation
import torch, torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from c import FAULT, seed, final

acc = Accelerator(cpu=True, gradient_accumulation_steps=4)
seed()
x = torch.randn(640, 16)
ds = TensorDataset(x, x[:, :4].argmax(1))
model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
opt = torch.optim.SGD(model.parameters(), 0.1)
if FAULT:
    model, loader = acc.prepare(model, DataLoader(ds, 8))
else:
    model, opt, loader = acc.prepare(model, opt, DataLoader(ds, 8))
for i, (a, b) in enumerate(loader):
    with acc.accumulate(model):
        loss = nn.functional.cross_entropy(model(a), b)
        acc.backward(loss)
        opt.step()
        if not FAULT or acc.sync_gradients:
            opt.zero_grad()
    print(i, loss.item())
final(loss, model)
