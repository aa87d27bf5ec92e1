"""A program of the study of mutations: `mutation_job.py PROGRAM [ERROR PARAMETER STEP]`. Prints its last weights."""

import gc
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
import torch.distributed as dist

from bench.mutations.mutations import MUTATIONS, Where
from bench.mutations.ranks import RANK_MUTATIONS, RANK_PROGRAMS

N_STEPS = 14


def main(name, error="", parameter="", step="0"):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    program = RANK_PROGRAMS[name]()
    if error:
        plant = MUTATIONS.get(error) or RANK_MUTATIONS[error][0]
        plant(program, Where(step=int(step), name=parameter, other=parameter, microbatch=0, is_once=False))
    program.train(N_STEPS)
    for parameter in program.model.parameters():
        own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        print(dist.get_rank(), own.detach().double().sum().item().hex(), flush=True)
    del program, own, parameter
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


main(*sys.argv[1:])
