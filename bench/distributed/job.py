"""One rank of the job that is timed: a GPT under DistributedDataParallel on gloo, in blocks of steps as rank 0 is told.

`python -m bench.distributed.job RANK WORLD_SIZE PORT FOLDER SIZE`: rank 0 reads `plain` or `tool` from stdin, tells the
others over a group of its own, all take a block of steps, and rank 0 answers with a line of JSON. The tool is attached
and taken off by all ranks between the same two steps.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.distributed.sizes import SIZES, Size

N_WARM_UP = 10  # untimed steps after each change of side: what looks densely at first steps is over then
N_TIMED = 10  # steps of a block: one of them digests the replicas
_END, _PLAIN, _TOOL = 0, 1, 2
_SIDES = {"plain": _PLAIN, "tool": _TOOL}


class Rank:
    """Trains with Hypocenter or without it."""

    def __init__(self, size: Size, folder: Path) -> None:
        self._step, self.n_parameters = _training(size)
        self._folder = folder
        self._attached = ExitStack()
        self._side, self._n_attached = _END, 0

    def block(self, side: int) -> tuple[float, float]:
        """Take N_TIMED steps: seconds of CPU time of this process, all threads, and of the clock."""
        if side != self._side:
            self._change(side)
        dist.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(N_TIMED):
            self._step()
        return time.process_time() - cpu, time.perf_counter() - wall

    def _change(self, side: int) -> None:
        self._attached.close()
        self._side = side
        if side == _TOOL:
            self._attach()
        for _ in range(N_WARM_UP if side != _END else 0):
            self._step()

    def _attach(self) -> None:
        """Rank 0 first: it makes sure that the folder is new."""
        import hypocenter

        self._n_attached += 1
        out = str(self._folder / f"run-{self._n_attached}")
        for is_turn in (dist.get_rank() == 0, dist.get_rank() > 0):
            if is_turn:
                self._attached.enter_context(hypocenter.watch(out=out))
            dist.barrier()

    def close(self) -> None:
        """Take the tool off."""
        self._change(_END)


def main(rank: int, world_size: int, port: int, folder: Path, size: str) -> None:
    """Serve blocks until stdin of rank 0 closes."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what is printed must not mix with the answers
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    control = dist.new_group(backend="gloo")
    worker = Rank(SIZES[size], folder)
    if rank == 0:
        print(json.dumps({"n_parameters": worker.n_parameters}), file=answers)
    while side := _told(rank, control):
        seconds = torch.tensor(worker.block(side))
        parts = [torch.empty_like(seconds) for _ in range(world_size)]
        dist.all_gather(parts, seconds, group=control)
        if rank == 0:
            cpu, wall = torch.stack(parts).double().T.tolist()
            print(json.dumps({"cpu_s": sum(cpu), "wall_s": max(wall)}), file=answers)
    worker.close()
    dist.barrier()
    dist.destroy_process_group()


def _told(rank: int, control: Any) -> int:
    said = torch.zeros(1, dtype=torch.int64)
    if rank == 0:
        line = sys.stdin.readline().strip()
        said[0] = _SIDES[line] if line else _END
    dist.broadcast(said, 0, group=control)
    return int(said)


def _training(size: Size) -> tuple[Callable[[], None], int]:
    """A step of forward, backward, clipping and AdamW, and how many parameters it updates."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=size.vocabulary, n_embd=size.width, n_layer=size.n_layers, n_head=size.n_heads,
        n_positions=size.n_tokens, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = nn.parallel.DistributedDataParallel(GPT2LMHeadModel(config).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    own = torch.Generator().manual_seed(1 + dist.get_rank())
    batches = [torch.randint(size.vocabulary, (size.n_rows, size.n_tokens), generator=own) for _ in range(4)]
    n_done = 0

    def step() -> None:
        nonlocal n_done
        tokens = batches[n_done % len(batches)]
        n_done += 1
        optimizer.zero_grad(set_to_none=True)
        loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step, sum(p.numel() for p in model.parameters())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5])
