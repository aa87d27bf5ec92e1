"""Physics-informed network for u'' = -u, u(0) = 0, u'(0) = 1: second derivatives by autograd.grad."""

import torch
import torch.nn as nn

torch.manual_seed(123)


class PINN(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp, self.mid, self.out = nn.Linear(1, width), nn.Linear(width, width), nn.Linear(width, 1)

    def forward(self, t):
        h = torch.tanh(self.inp(t))  # plant: forward
        return self.out(torch.tanh(self.mid(h)))


def derivative(y, x):
    return torch.autograd.grad(y, x, grad_outputs=torch.ones_like(y), create_graph=True)[0]


pinn = PINN()
optimiser = torch.optim.Adam(pinn.parameters(), lr=1e-3)
t_boundary = torch.tensor(0.0).view(-1, 1).requires_grad_(True)
t_physics = torch.linspace(0, 6, 30).view(-1, 1).requires_grad_(True)
for i in range(8):  # turn
    optimiser.zero_grad()
    u = pinn(t_boundary)
    loss1 = u.squeeze() ** 2
    dudt = derivative(u, t_boundary)
    loss2 = (dudt.squeeze() - 1) ** 2  # plant: boundary-loss
    u = pinn(t_physics)
    d2udt2 = derivative(derivative(u, t_physics), t_physics)  # plant: second-derivative
    loss3 = torch.mean((d2udt2 + u) ** 2)  # plant: physics-loss
    loss = loss1 + 1e-1 * loss2 + 1e-2 * loss3
    loss.backward()
    optimiser.step()
    print(i, loss.item())
