"""A NaN that is already in the batch."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_MICROBATCH, BAD_SAMPLE, BAD_FEATURE = 3, 1, 5, 2
torch.manual_seed(0)
torch.set_num_threads(1)


class Regressor(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.hidden = nn.Linear(d, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, features, target):
        prediction = self.head(torch.relu(self.hidden(features)))  # <- fault
        return {"loss": nn.functional.mse_loss(prediction.squeeze(-1), target), "prediction": prediction}


model = Regressor()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
direction = torch.randn(8)

for step in range(6):
    total = 0.0
    for microbatch in range(2):
        features = torch.randn(8, 8)
        target = features @ direction
        if step == BAD_STEP and microbatch == BAD_MICROBATCH and not HEALTHY:
            features[BAD_SAMPLE, BAD_FEATURE] = float("nan")
        loss = model(features=features, target=target)["loss"]
        (loss / 2).backward()
        total += loss.item() / 2
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {total:.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
