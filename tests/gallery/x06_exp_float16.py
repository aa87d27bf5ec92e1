"""A softmax by hand without subtracting the maximum: exp(x) overflows float16 above 11.09."""

import sys

import torch
from torch import nn

HEALTHY = "--healthy" in sys.argv
BAD_STEP, BAD_SAMPLE = 4, 6
torch.manual_seed(0)
torch.set_num_threads(1)


class Gate(nn.Module):
    def __init__(self, d, experts):
        super().__init__()
        self.score = nn.Linear(d, experts, bias=False)

    def forward(self, x):
        score = self.score(x)
        if HEALTHY:
            score = score - score.amax(-1, keepdim=True).detach()
        weight = torch.exp(score)  # <- fault
        return weight / weight.sum(-1, keepdim=True)


class Mixture(nn.Module):
    def __init__(self, d=8, experts=4):
        super().__init__()
        self.gate = Gate(d, experts)
        self.experts = nn.Linear(d, experts)

    def forward(self, x, target):
        prediction = (self.gate(x) * self.experts(x)).sum(-1)
        return nn.functional.huber_loss(prediction.float(), target)


model = Mixture().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
direction = torch.randn(8)

for step in range(7):
    x = torch.randn(16, 8)
    if step == BAD_STEP:
        x[BAD_SAMPLE] = 40.0 * model.gate.score.weight[2].detach().float().sign()  # an outlier that expert 2 likes
    loss = model(x.half(), x @ direction)
    loss.backward()
    grad = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
    print(f"step {step} loss {loss.item():.6f} grad {grad.item():.6f}")
    optimizer.step()
    optimizer.zero_grad()
