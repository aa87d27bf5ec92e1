# RANKS: FSDP2; a logit scale is kept out of fully_shard (ignored_params) and nobody averages its gradient
from mini import *
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
r = dist.get_rank()
seed()


class S(nn.Module):
    def __init__(s):
        super().__init__()
        s.g = GPT()
        s.scale = nn.Parameter(torch.ones(V))
        s.bias = nn.Parameter(torch.zeros(V))

    def forward(s, x):
        return s.g(x) * s.scale + s.bias


m = S()
for b in m.g.blocks:
    fully_shard(b)
fully_shard(m, ignored_params={m.scale, m.bias})
o = torch.optim.AdamW(m.parameters(), 2e-3, foreach=False)
data = corpus(2048)
for step in range(40):
    x = data[(step * 2 + r) * 16 : (step * 2 + r) * 16 + 16]
    loss = lm_loss(m(x[:, :-1]), x[:, 1:])
    o.zero_grad()
    loss.backward()
    if not FAULT:
        for p in (m.scale, m.bias):
            dist.all_reduce(p.grad)
            p.grad /= 2
    o.step()
print("FINAL loss=%.6f scale=%.6f rank%d" % (loss, m.scale.norm(), r))
dist.destroy_process_group()
