"""Two gloo ranks save a state dict of shards with torch.distributed.checkpoint; OUT/whole.pt has the whole tensors."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

out = Path(sys.argv[1])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
generator = torch.Generator().manual_seed(0)
whole = {
    "rows": torch.randn(6, 4, generator=generator),
    "uneven": torch.randn(7, generator=generator).bfloat16(),
    "columns": torch.randn(3, 4, generator=generator),
    "replicated": torch.randn(3, generator=generator),
}
shards = {name: distribute_tensor(whole[name], mesh, [Shard(dim)]) for name, dim in
          (("rows", 0), ("uneven", 0), ("columns", 1))}  # fmt: skip
state = {"model": {**shards, "replicated": whole["replicated"]}, "optim": {"lr": 0.1, "m": torch.ones(2)}, "step": 5}
dcp.save(state, checkpoint_id=out / "dcp")
if dist.get_rank() == 0:
    torch.save(whole, out / "whole.pt")
dist.barrier()
dist.destroy_process_group()
