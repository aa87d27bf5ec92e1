"""Fine-tuning from a checkpoint of a compiled model: no key fits and strict=False says nothing."""

import io

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


def build(classes):
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))


def train(model, classes, steps, W, losses, lr):
    run = torch.compile(model, backend="aot_eager")
    opt = torch.optim.AdamW(model.parameters(), lr)
    for _ in range(steps):
        x = torch.randn(32, 20)
        loss = F.cross_entropy(run(x), (x @ W[:, :classes]).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return run


W = torch.randn(20, 6)
losses = []
pre = train(build(6), 6, 30, W, losses, 1e-3)
blob = io.BytesIO()
torch.save(pre.state_dict(), blob)
blob.seek(0)
state = torch.load(blob)
if not FAULT:
    state = {k.removeprefix("_orig_mod."): v for k, v in state.items()}
model = build(6)
model.load_state_dict(state, strict=False)  # FAULT: every key has the prefix _orig_mod.
train(model, 6, 30, W, losses, 1e-4)
finish(losses, model)
