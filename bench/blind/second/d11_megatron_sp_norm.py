# RANKS 2
# Megatron-core sequence parallel: gradients of the replicated LayerNorm are not summed over the tensor ranks
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from megatron.core import parallel_state as ps
from c import FAULT, seed, final

dist.init_process_group("gloo")
ps.initialize_model_parallel(tensor_model_parallel_size=2)
rank = dist.get_rank()


def _all(x):
    p = [torch.empty_like(x) for _ in range(2)]
    dist.all_gather(p, x.contiguous())
    return torch.cat(p)


def _sum(x):
    x = x.contiguous().clone()
    dist.all_reduce(x)
    return x.chunk(2)[rank].contiguous()


class Gather(torch.autograd.Function):  # backward: reduce-scatter, or this rank's part where the rest is replicated
    @staticmethod
    def forward(ctx, x, tensor_parallel_output_grad):
        ctx.tp = tensor_parallel_output_grad
        return _all(x)

    @staticmethod
    def backward(ctx, g):
        return (_sum(g) if ctx.tp else g.chunk(2)[rank].contiguous()), None


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.chunk(2)[rank].contiguous()

    @staticmethod
    def backward(ctx, g):
        return _all(g)


class RS(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _sum(x)

    @staticmethod
    def backward(ctx, g):
        return _all(g)


def gather(x, tensor_parallel_output_grad=True):
    return Gather.apply(x, tensor_parallel_output_grad)


scatter, rs = Scatter.apply, RS.apply


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        seed()
        self.tok = nn.Embedding(40, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 40)
        seed(100 + rank)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x):  # x: sequence, batch
        h = scatter(self.tok(x))
        h = h + rs(self.down(torch.relu(self.up(gather(self.norm(h))))))
        return self.head(gather(h, tensor_parallel_output_grad=False))


net = Net()
opt = torch.optim.Adam(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(3)
for step in range(20):
    x = ((torch.randint(0, 40, (8, 1), generator=g) + torch.arange(17) * 3) % 40).t().contiguous()
    loss = F.cross_entropy(net(x[:-1]).reshape(-1, 40), x[1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    if not FAULT:
        for p in net.norm.parameters():
            dist.all_reduce(p.grad, group=ps.get_tensor_model_parallel_group())
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, net)
dist.destroy_process_group()
