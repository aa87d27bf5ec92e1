"""Fit a noisy sine with a small network and LBFGS, as in the time sequence example of PyTorch."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(1, 16)
        self.fc2 = nn.Linear(16, 1)

    def forward(self, x):
        h = torch.tanh(self.fc1(x))  # plant: forward
        return self.fc2(h)


x = torch.linspace(-3, 3, 64).unsqueeze(1)
y = torch.sin(x) + 0.1 * torch.randn_like(x)
net = Net()
criterion = nn.MSELoss()
optimizer = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=4)

for step in range(6):  # turn
    inp = x / 3.0  # plant: data

    def closure():
        optimizer.zero_grad()
        out = net(inp)  # plant: output
        loss = criterion(out, y)  # plant: loss
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    print("step", step, "loss", loss.item())
