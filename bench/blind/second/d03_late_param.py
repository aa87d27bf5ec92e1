# RANKS 2
# an adapter is added to a DDP model at step 8: its gradients are not averaged
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from c import FAULT, seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
seed()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 32)
        self.adapter = None
        self.b = nn.Linear(32, 4)

    def forward(self, x):
        h = torch.relu(self.a(x))
        if self.adapter is not None:
            h = h + self.adapter(h)
        return self.b(h)


net = Net()
model = DDP(net)
opt = torch.optim.Adam(net.parameters(), 2e-3)
g = torch.Generator().manual_seed(10 + rank)
for step in range(20):
    if step == 8:
        seed(3)
        net.adapter = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 32))
        opt.add_param_group({"params": list(net.adapter.parameters())})
        if not FAULT:
            model = DDP(net)
    x = torch.randn(16, 16, generator=g)
    y = x[:, :4].argmax(1)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if rank == 0:
        print(step, loss.item())
final(loss, net)
dist.destroy_process_group()
