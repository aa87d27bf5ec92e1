"""A loop with a checkpoint of its own: AdamW, warm-up, a loss scaler, dropout, shuffled data.

    python plain.py FOLDER [--resume [FAULT ...]] [--auto] [--count]

A fault is what is not loaded: optimizer, scheduler, rng, sampler, scaler, weights; `step` skips a batch too many.
--auto: it resumes where there is a checkpoint. --count: the model counts its calls, and nobody saves that.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

folder, faults = Path(sys.argv[1]), set(sys.argv[2:]) - {"--resume", "--auto", "--count"}
torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 8), torch.randn(48, 1))


class Counting(nn.Module):
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * min(self.calls, 40) / 10.0 if "--count" in sys.argv else x


model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), Counting(), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(1.0, (n + 1) / 10))
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
shuffle = torch.Generator().manual_seed(1)
path = folder / "last.pt"
done, shuffled = 0, None
parts = {"weights": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
if "--resume" in sys.argv or ("--auto" in sys.argv and path.exists()):
    saved = torch.load(path, weights_only=True)
    for name, part in parts.items():
        if name not in faults:
            part.load_state_dict(saved[name])
    done = saved["done"] + ("step" in faults)
    if "sampler" not in faults:
        shuffle.set_state(saved["shuffle"])
    else:
        done = 0
    if "rng" not in faults:
        torch.set_rng_state(saved["rng"])

n_batches = 12
while done < 60:
    shuffled = shuffle.get_state()
    skip = done % n_batches
    order = torch.randperm(len(data), generator=shuffle).reshape(n_batches, -1)
    for rows in order[skip:]:
        x, y = data[rows]
        loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
        done += 1
        states = {name: part.state_dict() for name, part in parts.items()}
        torch.save({**states, "done": done, "shuffle": shuffled, "rng": torch.get_rng_state()}, path)
