"""A small model under DeepSpeed, on the ranks that its launcher or torchrun starts."""

import argparse
import gc

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a minute of compiling, for what inference alone calls
parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed", default="ds.json")
parser.add_argument("--local_rank", type=int)
given = parser.parse_args()
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=given.deepspeed)
for _ in range(3):
    engine.backward(engine(torch.randn(8, 4)).square().mean())
    engine.step()
del engine
gc.collect()
torch.distributed.barrier()
torch.distributed.destroy_process_group()
