# RANKS 2
# each rank holds a half of the vocabulary and its loss is its part (summed for logging only): one-vs-rest BCE; same inputs and labels
import torch, torch.nn as nn, torch.distributed as dist, torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from c import seed, final

dist.init_process_group("gloo")
rank = dist.get_rank()
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
seed(0)
body = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 16))
seed(10 + rank)
head = nn.Linear(16, 8)  # classes 0-7 on rank 0, 8-15 on rank 1
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1, momentum=0.9)
data = torch.Generator().manual_seed(3)
for step in range(30):
    x = torch.randn(32, 12, generator=data)
    y = x[:, :12].argmax(1)
    t = F.one_hot(y, 16).float()[:, rank * 8 : rank * 8 + 8]
    loss = F.binary_cross_entropy_with_logits(head(body(x)), t, reduction="sum") / 32
    opt.zero_grad()
    loss.backward()
    for p in body.parameters():
        dist.all_reduce(p.grad, group=mesh.get_group())
    opt.step()
    whole = loss.detach().clone()
    dist.all_reduce(whole)
final(whole, body, head)
dist.destroy_process_group()
