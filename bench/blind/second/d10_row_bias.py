# RANKS 2
# tensor parallelism by hand: the row-parallel bias is added on every rank before the sum
import torch, torch.nn as nn, torch.distributed as dist
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()


class Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.contiguous().clone()
        dist.all_reduce(g)
        return g


class Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.contiguous().clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


class MLP(nn.Module):
    def __init__(self, d=32, h=64):
        super().__init__()
        up = torch.randn(h, d) / d**0.5
        down = torch.randn(d, h) / h**0.5
        n = h // 2
        self.up = nn.Parameter(up[rank * n : (rank + 1) * n].clone())
        self.down = nn.Parameter(down[:, rank * n : (rank + 1) * n].clone())
        self.bias = nn.Parameter(torch.randn(d) * 0.1)

    def forward(self, x):
        y = torch.relu(Copy.apply(x) @ self.up.t()) @ self.down.t()
        return Reduce.apply(y + self.bias) if FAULT else Reduce.apply(y) + self.bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(16, 32)
        self.mlp = MLP()
        self.out = nn.Linear(32, 4)

    def forward(self, x):
        h = self.inp(x)
        return self.out(h + self.mlp(h))


net = Net()
opt = torch.optim.Adam(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(10)
for step in range(20):
    x = torch.randn(32, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, net)
dist.destroy_process_group()
