import os

from common import *
import torch.distributed as dist

dist.init_process_group(
    "nccl" if D == "cuda" else "gloo",
    init_method="tcp://127.0.0.1:%d" % (20000 + os.getpid() % 20000),
    rank=0,
    world_size=1,
)
m = nn.parallel.DistributedDataParallel(GPT(n=2).to(D), device_ids=[0] if D == "cuda" else None)
o = torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True)
for i in range(20):
    ids = tokens()
    with torch.autocast(D, torch.bfloat16):
        loss = lm_loss(m(ids), ids)
    loss.backward()
    o.step()
    o.zero_grad()
    t = loss.detach().clone()
    dist.all_reduce(t)
    said(i, t)
done(m)
dist.destroy_process_group()
