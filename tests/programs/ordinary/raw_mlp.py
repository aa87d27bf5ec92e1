"""A two-layer network on raw tensors with autograd, after `Learning PyTorch with Examples`."""

import torch

dtype = torch.float
torch.manual_seed(42)
N, D_in, H, D_out = 32, 12, 20, 4
x = torch.randn(N, D_in, dtype=dtype)
y = torch.randn(N, D_out, dtype=dtype)
w1 = torch.randn(D_in, H, dtype=dtype, requires_grad=True)
w2 = torch.randn(H, D_out, dtype=dtype, requires_grad=True)
learning_rate = 1e-4

for t in range(8):  # turn
    xs = x + 0.01 * torch.randn_like(x)  # plant: data
    h = xs.mm(w1).clamp(min=0)  # plant: hidden
    y_pred = h.mm(w2)  # plant: output
    loss = (y_pred - y).pow(2).sum()  # plant: loss
    print(t, loss.item())
    loss.backward()
    with torch.no_grad():
        w1 -= learning_rate * w1.grad
        w2 -= learning_rate * w2.grad
        w1.grad.zero_()
        w2.grad.zero_()
