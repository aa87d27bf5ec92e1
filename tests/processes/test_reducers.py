"""A run of several ranks ends, however DDP is let go."""

import gc
import sys
import weakref
from pathlib import Path

import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from reducers import keep_reducers


def test_a_reducer_outlives_its_model(tmp_path, monkeypatch):
    monkeypatch.setattr(dist, "Reducer", dist.Reducer)
    keep_reducers()
    keep_reducers()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
        reducer, gone = weakref.ref(model.reducer), weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None
        assert reducer() is not None
    finally:
        dist.destroy_process_group()
