"""A pipeline by hand: `pipeline_job.py FAULT`. Rank 0 has the tokens, rank 1 the head; three micro-batches a step.

FAULT: none; stale (the second micro-batch is computed with the activation of the first); other-call (at step 3 rank 1
waits for a broadcast where rank 0 adds up a norm).
"""

import datetime
import gc
import sys

import torch
import torch.distributed as dist
from torch import nn

FAULT = sys.argv[1]
STEPS, MICROBATCHES, WIDTH = 5, 3, 8


def first(net, tokens, labels):
    for rows in tokens:
        activation = net(rows)
        dist.send(activation.detach().clone(), 1)
        gradient = torch.empty_like(activation)
        dist.recv(gradient, 1)
        activation.backward(gradient)


def last(net, tokens, labels):
    before = None
    for number, (rows, target) in enumerate(zip(tokens, labels, strict=True)):
        arrived = torch.empty(*rows.shape, WIDTH)
        dist.recv(arrived, 0)
        activation = before.detach().clone() if FAULT == "stale" and number == 1 else arrived
        before = arrived
        activation.requires_grad_()
        loss = nn.functional.cross_entropy(net(activation).flatten(0, 1), target.flatten())
        (loss / MICROBATCHES).backward()
        dist.send(activation.grad.clone(), 0)


def train(rank):
    torch.manual_seed(rank)
    head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 32))
    net = nn.Embedding(32, WIDTH) if rank == 0 else head
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(5)
    for step in range(STEPS):
        tokens = torch.randint(32, (MICROBATCHES, 4, 6), generator=draw)
        optimizer.zero_grad()
        (first if rank == 0 else last)(net, tokens, (tokens + 1) % 32)
        norm = sum(p.grad.square().sum() for p in net.parameters())
        if FAULT == "other-call" and step == 3 and rank == 1:
            dist.broadcast(norm, 0)
        else:
            dist.all_reduce(norm)
        optimizer.step()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5 if FAULT == "other-call" else 60))
    train(dist.get_rank())
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
