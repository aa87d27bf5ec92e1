"""Healthy: frozen parameters, a head that is never called, one that is called in every second step."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.backbone = nn.Linear(d, 16).requires_grad_(False)
        self.body = nn.Linear(16, 16)
        self.main = nn.Linear(16, 3)
        self.auxiliary = nn.Linear(16, 3)
        self.spare = nn.Linear(16, 3)

    def forward(self, x, auxiliary):
        h = torch.relu(self.body(torch.tanh(self.backbone(x))))
        return self.auxiliary(h) if auxiliary else self.main(h)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
centers = 2.0 * torch.randn(3, 8)

for step in range(9):
    labels = torch.arange(12) % 3
    x = centers[labels] + torch.randn(12, 8)
    loss = nn.functional.cross_entropy(model(x, auxiliary=step % 2 == 1), labels)
    optimizer.zero_grad(set_to_none=step % 3 == 0)  # the other steps keep gradients of exactly zero
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        logits = model(x, auxiliary=False)
        best = torch.where(logits == logits.max(-1, keepdim=True).values, logits, float("-inf"))
        accuracy = (best.argmax(-1) == labels).float().mean()
    model.train()
    print(f"step {step} loss {loss.item():.6f} accuracy {accuracy.item():.2f}")
