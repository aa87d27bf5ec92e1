# RANKS 2
"""Expert parallelism by hand, one expert a rank: tokens come back in the order of experts and are not put back in theirs."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from c import FAULT, finish

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, out_splits, in_splits):
        ctx.splits = (in_splits, out_splits)
        out = x.new_empty(sum(out_splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), out_splits, in_splits)
        return out

    @staticmethod
    def backward(ctx, g):
        o, i = ctx.splits
        return AllToAll.apply(g, o, i), None, None


class MoE(nn.Module):
    def __init__(self, d):
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(d, world)
        torch.manual_seed(1 + rank)
        self.expert = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))

    def forward(self, x):
        prob, where = self.router(x).softmax(-1).max(-1)
        order = where.argsort(stable=True)
        send = torch.bincount(where, minlength=world)
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        send, recv = send.tolist(), recv.tolist()
        y = self.expert(AllToAll.apply(x[order], recv, send))
        y = AllToAll.apply(y, send, recv)
        if not FAULT:
            y = y[order.argsort()]  # FAULT: left out
        return x + prob[:, None] * y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inp, self.out = nn.Linear(12, 16), nn.Linear(16, 4)
        self.moe = MoE(16)

    def forward(self, x):
        return self.out(self.moe(self.inp(x)))


net = Net()
opt = torch.optim.AdamW(net.parameters(), 3e-3)
shared = [p for n, p in net.named_parameters() if "expert" not in n]
W = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))
torch.manual_seed(20 + rank)
losses = []
for step in range(40):
    x = torch.randn(24, 12)
    loss = F.cross_entropy(net(x), (x @ W).abs().argmax(1))
    opt.zero_grad()
    loss.backward()
    for p in shared:
        dist.all_reduce(p.grad)
        p.grad /= world
    for p in net.moe.expert.parameters():
        p.grad /= world
    opt.step()
    losses.append(loss.item())
finish(losses, net)
dist.destroy_process_group()
