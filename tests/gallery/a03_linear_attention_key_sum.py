"""Linear attention in float16: the key sum grows with the length, 1/inf = 0 hides it (fast-transformers#32)."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP = 4  # the first long document
torch.manual_seed(0)
torch.set_num_threads(1)


class LinearAttention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.query = nn.Linear(d, d)
        self.key = nn.Linear(d, d)
        self.value = nn.Linear(d, d)

    def forward(self, x):
        q = torch.softmax(self.query(x), dim=-1)
        k = nn.functional.relu(self.key(x)) + 10.0
        total = k.sum(dim=1, keepdim=True)  # <- fault
        context = (k / total).transpose(1, 2) @ self.value(x)
        return q @ context


class Classifier(nn.Module):
    def __init__(self, d=16, classes=4):
        super().__init__()
        self.attention = LinearAttention(d)
        self.head = nn.Linear(d, classes)

    def forward(self, x):
        return self.head(self.attention(x).mean(dim=1))


model = Classifier().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
centers = 3.0 * torch.randn(4, 16)

for step in range(7):
    length = 8192 if step >= BAD_STEP and not HEALTHY else 512
    labels = torch.arange(8) % 4
    x = (centers[labels][:, None] + torch.randn(8, length, 16)).half()
    loss = criterion(model(x).float(), labels)
    optimizer.zero_grad()
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    print(f"step {step} zero {sum(not p.grad.any() for p in model.parameters())}")
    optimizer.step()
