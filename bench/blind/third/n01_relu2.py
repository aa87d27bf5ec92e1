"""Squared ReLU in an fp16 autocast MLP: the hidden layer grows and overflows fp16 in the down projection's product."""

import torch
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

torch.manual_seed(0)


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        h = F.relu(self.up(self.norm(x))).square()
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Linear(8, 32)
        self.layers = nn.ModuleList(MLP(32) for _ in range(3))
        self.head = nn.Linear(32, 1)

    def forward(self, x):
        x = self.emb(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


net = Net()
with torch.no_grad():
    net.layers[1].up.weight.mul_(60)
opt = torch.optim.SGD(net.parameters(), 1e-7)
losses = []
for step in range(30):
    x = torch.randn(16, 8)
    if step >= 11:
        net.layers[1].norm.weight.data.mul_(1.25)
    with torch.autocast("cpu", torch.float16 if FAULT else torch.bfloat16):  # FAULT: square above 65504
        out = net(x)
    loss = F.mse_loss(out.float(), x[:, :1]) * 1e-6
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.item())
finish(losses, net)
