import os

from common import *
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy

dist.init_process_group(
    "nccl" if D == "cuda" else "gloo",
    init_method="tcp://127.0.0.1:%d" % (20000 + os.getpid() % 20000),
    rank=0,
    world_size=1,
)
m = GPT(n=3).to(D)
mp = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for b in m.blocks:
    fully_shard(b, mp_policy=mp)
fully_shard(m, mp_policy=mp)
o = torch.optim.AdamW(m.parameters(), lr=1e-3)
for i in range(20):
    ids = tokens()
    loss = lm_loss(m(ids), ids)
    loss.backward()
    nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    o.step()
    o.zero_grad()
    said(i, loss)
dist.destroy_process_group()
