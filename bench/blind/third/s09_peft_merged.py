"""PEFT: the adapter is merged for an evaluation and not taken out again."""

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(16, 64), nn.Linear(64, 64)
        self.score = nn.Linear(64, 4)

    def forward(self, x):
        return self.score(F.relu(self.fc2(F.relu(self.fc1(x)))))


model = get_peft_model(Net(), LoraConfig(r=4, target_modules=["fc1", "fc2"], modules_to_save=["score"]))
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 5e-3)
W = torch.randn(16, 4)


def batch(n=32):
    x = torch.randn(n, 16)
    return x, (x @ W).argmax(1)


@torch.no_grad()
def evaluate():
    model.merge_adapter()
    x, y = batch(64)
    acc = (model(x).argmax(1) == y).float().mean().item()
    if not FAULT:
        model.unmerge_adapter()  # FAULT: left out
    return acc


losses = []
for step in range(50):
    x, y = batch()
    loss = F.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
    if step == 14:
        print("acc", evaluate())
finish(losses, model)
