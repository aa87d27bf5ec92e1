"""Trains four stages on two ranks with a schedule of torch.distributed.pipelining, with dropout.

    torchrun --nproc-per-node 2 pipelining_job.py --schedule zbv --plant --at 2

Prints a digest of the parameters' bits.
"""

import argparse
import atexit
import gc
import hashlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

WIDTH, CLASSES, BATCH, N_MICROBATCHES, N_STAGES = 16, 8, 32, 8, 4
LOOP, V = (lambda rank: (rank, rank + 2)), (lambda rank: (rank, N_STAGES - 1 - rank))
SCHEDULES = {
    "interleaved": (schedules.ScheduleInterleaved1F1B, LOOP),
    "interleaved-zero-bubble": (schedules.ScheduleInterleavedZeroBubble, LOOP),
    "zbv": (schedules.ScheduleZBVZeroBubble, V),
    "dualpipev": (schedules.ScheduleDualPipeV, V),
}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.divisor = 1.0

    def forward(self, x):
        hidden = self.down(self.dropout(torch.tanh(self.up(self.norm(x)))))
        return x + hidden / torch.full_like(hidden, self.divisor)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({str(index): Block() for index in range(N_STAGES)})
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


def part(net, index):
    """The same model, with what belongs to one stage."""
    own = Net()
    own.load_state_dict(net.state_dict())
    for key in [key for key in own.blocks if key != str(index)]:
        del own.blocks[key]
    if index != N_STAGES - 1:
        own.head = None
    return own


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--schedule", choices=SCHEDULES, required=True)
    parser.add_argument("--plant", action="store_true", help="a division by zero in rank 1's first block")
    parser.add_argument("--at", type=int, default=-1)
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def main():
    a = arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net, rank = Net(), dist.get_rank()
    kind, place = SCHEDULES[a.schedule]
    parts = [part(net, index) for index in place(rank)]
    stages = [
        PipelineStage(each, index, N_STAGES, torch.device("cpu"))
        for each, index in zip(parts, place(rank), strict=True)
    ]
    schedule = kind(stages, N_MICROBATCHES, loss_fn=nn.functional.cross_entropy)
    optimizer = torch.optim.AdamW([p for each in parts for p in each.parameters()], lr=1e-3)
    torch.manual_seed(10 + rank)
    for step in range(a.steps):
        if a.plant and rank == 1:
            parts[0].blocks["1"].divisor = 0.0 if step == a.at else 1.0
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randn(BATCH, WIDTH, generator=generator), torch.randint(0, CLASSES, (BATCH,), generator=generator)
        optimizer.zero_grad()
        first, last = 0 in place(rank), N_STAGES - 1 in place(rank)
        schedule.step(*([x] if first else []), **({"target": y} if last else {}))
        optimizer.step()
    digest = hashlib.sha256()
    for each in parts:
        for parameter in each.parameters():
            digest.update(parameter.detach().numpy().tobytes())
    os.write(1, f"rank {rank} digest {digest.hexdigest()}\n".encode())


if __name__ == "__main__":
    main()
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    atexit._run_exitfuncs()
    os._exit(0)  # gloo's threads now and then abort a normal exit after all work is done
