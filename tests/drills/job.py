"""The job of the drills: a small model on gloo ranks, one of which does something at a given step and place.

    job.py [--steps 12] [--victim 2 --act raise --step 5 --where forward] [--timeout 5] [--style ddp]

Styles: ddp; plain (all-reduces of the gradients by hand); inside (an all-reduce in the model's forward: then the ranks
meet before each update).

Acts: raise (an exception), kill (SIGKILL), stop (SIGSTOP), leave (ends early, as with uneven data), late (sleeps),
slow-disk (each write of its recording takes a while), full-disk (its recording meets a full disk). Places: data,
forward, backward, before-update, update. Without --victim nothing happens. Says `rank R step S` on stdout after each
step, and on stderr `rank R error T` when an exception reaches it and `rank R acts T` before the victim's act (T:
monotonic seconds).
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    args = _arguments()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    rank = dist.get_rank()
    torch.manual_seed(0)
    data = torch.Generator().manual_seed(rank)
    middle = Centred() if args.style == "inside" else nn.Tanh()
    model = nn.Sequential(nn.Linear(16, 32), middle, nn.Linear(32, 8))
    trained = nn.parallel.DistributedDataParallel(model) if args.style == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_victim = rank == args.victim and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"

    def at(where: str, step: int) -> None:
        if is_victim and (step, where) == (args.step, args.where):
            act(args.act)

    if is_victim and args.where == "forward":
        model[1].register_forward_pre_hook(lambda *_: at("forward", now[0]))
    if is_victim and args.where == "backward":
        model[0].weight.register_hook(lambda _: at("backward", now[0]))
    if is_victim and args.where == "update":
        optimizer.register_step_pre_hook(lambda *_: at("update", now[0]))
    if is_victim and args.act in ("slow-disk", "full-disk"):
        _hurt_disk(args.act, args.step)
    now = [0]
    for step in range(args.steps):
        now[0] = step
        at("data", step)
        loss = trained(torch.randn(4, 16, generator=data)).square().mean()
        loss.backward()
        if args.style != "ddp":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        at("before-update", step)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.pace)
        print(f"rank {rank} step {step}", flush=True)
    del trained
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


class Centred(nn.Module):
    """Takes the mean over all ranks away, as a module that communicates."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.detach().mean(0)
        dist.all_reduce(total)
        return x - total / dist.get_world_size()


def say(what: str) -> None:
    """Something with its time, for the drill to measure."""
    print(f"rank {os.environ['RANK']} {what} {time.monotonic():.6f}", file=sys.stderr, flush=True)


def act(name: str) -> None:
    """What becomes of the victim."""
    say("acts")
    if name == "raise":
        raise ValueError("the sample has no label")
    if name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if name == "leave":
        sys.exit(0)
    if name == "late":
        time.sleep(3600)


def _hurt_disk(name: str, step: int) -> None:
    """The writer's own system call fails or takes long, from some write on."""
    from hypocenter.record import stream

    real, n = os.write, [0]

    class Disk:
        """The os module as the stream sees it."""

        def __getattr__(self, attribute: str) -> object:
            return getattr(os, attribute)

        def write(self, fd: int, data: bytes) -> int:
            n[0] += 1
            if name == "slow-disk":
                time.sleep(0.2)
            return real(fd, data)

    if name == "slow-disk":
        stream.os = Disk()  # type: ignore[assignment]
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (step * 1024, resource.RLIM_INFINITY))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--victim", type=int, default=-1)
    parser.add_argument("--act", default="raise")
    parser.add_argument("--step", type=int, default=5)
    parser.add_argument("--where", default="data")
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--style", choices=("ddp", "plain", "inside"), default="ddp")
    return parser.parse_args()


try:
    main()
except BaseException as error:
    if not isinstance(error, SystemExit):
        say("error")
    raise
