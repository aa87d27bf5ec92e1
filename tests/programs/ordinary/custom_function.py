"""A custom autograd.Function (Legendre polynomial P3) inside a small module, after the tutorial."""

import math

import torch


class LegendrePolynomial3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        value = 0.5 * (5 * input**3 - 3 * input)  # plant: function-forward
        return value

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        slope = 1.5 * (5 * input**2 - 1)  # plant: function-backward
        return grad_output * slope


class Fit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(0.0))
        self.b = torch.nn.Parameter(torch.tensor(-1.0))
        self.c = torch.nn.Parameter(torch.tensor(0.0))
        self.d = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        inner = self.c + self.d * x  # plant: forward
        return self.a + self.b * LegendrePolynomial3.apply(inner)


torch.manual_seed(0)
x = torch.linspace(-math.pi, math.pi, 100)
y = torch.sin(x)
model = Fit()
optimizer = torch.optim.SGD(model.parameters(), lr=5e-5)
for t in range(8):  # turn
    y_pred = model(x)
    loss = (y_pred - y).pow(2).sum()  # plant: loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(t, loss.item())
