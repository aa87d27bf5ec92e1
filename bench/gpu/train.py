"""Trains a small GPT on a device, with what a check asks for; prints each loss to the bit, and what it measured."""

from __future__ import annotations

import argparse
import contextlib
import os
import time
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, TOKENS, VOCABULARY = 64, 4, 32, 128


class Block(nn.Module):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.given = given
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.between, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, gain: Tensor) -> Tensor:
        x = x * gain * gain  # of a gain that is far too large the square is infinite
        drop = self.given.dropout if self.training else 0.0
        n, t, _ = x.shape
        q, k, v = (each.view(n, t, HEADS, -1).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, t, WIDTH))
        wide = functional.gelu(self.up(self.between(x)))
        if self.given.fp8:
            wide = _through_float8(wide)
        return x + functional.dropout(self.down(wide), drop)


class Model(nn.Module):
    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__()
        self.given, self.embedding = given, nn.Embedding(VOCABULARY, WIDTH)
        self.blocks, self.head = nn.ModuleList([Block(given) for _ in range(3)]), nn.Linear(WIDTH, VOCABULARY)
        if given.recurrent:  # cuDNN draws its dropout from a state of its own
            self.recurrent = nn.LSTM(WIDTH, WIDTH, 2, dropout=given.dropout, batch_first=True)

    def forward(self, tokens: Tensor, gain: Tensor) -> Tensor:
        x = self.embedding(tokens)
        if self.given.scatter:  # its sum is in another order each time
            where = tokens.flatten() % 7
            x = x + torch.zeros(7, WIDTH, device=x.device).index_add(0, where, x.flatten(0, 1).float())[tokens % 7].to(
                x
            )
        if self.given.recurrent:
            x = x + self.recurrent(x)[0]
        for number, block in enumerate(self.blocks):
            x = block(x, gain if number == 1 else torch.ones_like(gain))
        return self.head(x)


def _through_float8(x: Tensor) -> Tensor:
    """A matrix product in float8, as an accelerator has it."""
    flat = x.flatten(0, -2).to(torch.bfloat16)
    one = torch.ones((), device=x.device)
    weight = torch.eye(flat.shape[1], device=x.device).to(torch.float8_e4m3fn)
    made = torch._scaled_mm(flat.to(torch.float8_e4m3fn), weight.t(), one, one, out_dtype=torch.bfloat16)
    return x + (made.view_as(x).to(x.dtype) - x).detach()


class Training:
    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.device = given, _device(given)
        torch.manual_seed(0)
        self.model: nn.Module = Model(given).to(self.device)
        self.gain = torch.ones((), device=self.device)
        self.own = self.model
        if given.parallel == "ddp":
            ids = [self.device.index] if self.device.type != "cpu" else None
            self.model = nn.parallel.DistributedDataParallel(self.model, device_ids=ids)
        elif given.parallel == "fsdp2":
            from torch.distributed.fsdp import fully_shard

            for block in self.own.blocks:
                fully_shard(block)
            fully_shard(self.own)
        if given.compile:
            self.model = torch.compile(self.model, mode=given.compile)
        graphed = {"capturable": True} if given.graph else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, **graphed)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=given.scaler)
        self.tokens = torch.zeros(4, TOKENS, dtype=torch.int64, device=self.device)

    def take(self, step: int) -> None:
        """The next batch, into the same memory."""
        rank = int(os.environ.get("RANK", 0))
        self.tokens.copy_(
            torch.randint(0, VOCABULARY, (4, TOKENS), generator=torch.Generator().manual_seed(97 * step + rank))
        )
        is_bad = step == self.given.nan_at and rank == self.given.nan_rank
        self.gain.fill_(1e30 if is_bad else 1.0)
        if step == self.given.assert_at:
            self.tokens[0, 0] = VOCABULARY + 1000

    def backward(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=not self.given.graph)
        half = torch.float16 if self.given.scaler else torch.bfloat16
        with torch.autocast(self.device.type, half, enabled=self.given.autocast or self.given.scaler):
            logits = self.model(self.tokens, self.gain)
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), self.tokens.roll(-1, 1).flatten())
        self.scaler.scale(loss).backward()
        return loss.detach()

    def update(self) -> None:
        if self.given.clip:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def step(self) -> Tensor:
        loss = self.backward()
        self.update()
        return loss


def _device(given: argparse.Namespace) -> torch.device:
    if given.parallel:
        ranks, n = int(os.environ["WORLD_SIZE"]), torch.accelerator.device_count() if given.device != "cpu" else 0
        backend = torch.distributed.get_default_backend_for_device(given.device) if n >= ranks else "gloo"
        torch.distributed.init_process_group(backend)
        if given.device != "cpu":
            torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]) % n)
    index = 0 if given.device != "cpu" and not given.parallel else None
    if given.device != "cpu" and given.parallel:
        index = torch.accelerator.current_device_index()
    return torch.device(given.device) if index is None else torch.device(given.device, index)


def plain(training: Training, given: argparse.Namespace) -> list[Tensor]:
    """Step after step."""
    losses: list[Tensor] = []
    for step in range(given.steps):
        training.take(step)
        losses.append(training.step())
    return losses


def graphed(training: Training, given: argparse.Namespace) -> list[Tensor]:
    """All of a step in one graph, or its model as a graphed callable."""
    device: object = getattr(torch, given.device)
    side = device.Stream()
    side.wait_stream(device.current_stream())
    if given.graph == "callable":
        training.take(0)
        with device.stream(side):
            sample = (training.tokens.clone(), training.gain.clone())
        training.model = device.make_graphed_callables(training.model, sample)
        return plain(training, given)
    losses: list[Tensor] = []
    with device.stream(side):
        for step in range(3):
            training.take(step)
            losses.append(training.step())
    device.current_stream().wait_stream(side)
    graph = device.CUDAGraph()
    with device.graph(graph):
        static = training.step()
    for step in range(3, given.steps):
        training.take(step)
        graph.replay()
        losses.append(static.clone())
    return losses


def counted(training: Training, given: argparse.Namespace) -> list[Tensor]:
    """How often a step waits for the device, by torch's own word for it."""
    losses = plain(training, argparse.Namespace(**{**vars(given), "steps": 8}))
    n_seen = 0
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for step in range(8, given.steps):
            training.take(step)
            torch.cuda.set_sync_debug_mode("warn")
            losses.append(training.step())
            torch.cuda.set_sync_debug_mode("default")
        n_seen = sum("synchroniz" in str(each.message) for each in seen)
    print(f"syncs {n_seen / (given.steps - 8)}")
    return losses


def timed(training: Training, given: argparse.Namespace) -> list[Tensor]:
    """What passes between the last gradient and the first kernel of the optimizer, on the device's own clock."""
    losses: list[Tensor] = []
    spent: list[float] = []
    is_cuda = given.device == "cuda"

    def mark() -> object:
        if not is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    marks: list[object] = []
    hook = training.optimizer.register_step_pre_hook(lambda *_: marks.append(mark()))
    for step in range(given.steps):
        training.take(step)
        losses.append(training.backward())
        marks.append(mark())
        training.update()
        begin, end = marks[-2:]
        if is_cuda:
            torch.cuda.synchronize()
        spent.append(begin.elapsed_time(end) if is_cuda else 1000 * (end - begin))
    hook.remove()
    print(f"before_update_ms {sorted(spent)[len(spent) // 2]}")
    return losses


def filled(training: Training, given: argparse.Namespace) -> list[Tensor]:
    """With a share of the device's memory taken: a step that fails, and what is left to the next hundred."""
    losses = plain(training, argparse.Namespace(**{**vars(given), "steps": 2, "nan_at": -1}))
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, int(free - (1 - given.fill) * total)), dtype=torch.uint8, device=given.device)
    before = torch.cuda.memory_reserved()
    for step in range(2, given.steps):
        training.take(step)
        losses.append(training.step())
    print(f"reserved_more_mib {(torch.cuda.memory_reserved() - before) / 2**20}")
    print(f"peak_mib {(torch.cuda.max_memory_allocated() - ballast.numel()) / 2**20}")
    return losses


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", default="cpu")
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--dropout", type=float, default=0.1)
    options.add_argument("--compile", default="")
    options.add_argument("--parallel", choices=["", "ddp", "fsdp2"], default="")
    options.add_argument("--graph", choices=["", "whole", "callable"], default="")
    options.add_argument("--measure", choices=["", "syncs", "idle"], default="")
    options.add_argument("--fill", type=float, default=0.0, help="share of the device's memory that is taken")
    options.add_argument("--nan-at", type=int, default=-1, help="block 1 overflows at this step")
    options.add_argument("--nan-rank", type=int, default=0)
    options.add_argument("--assert-at", type=int, default=-1)
    for flag in ("autocast", "clip", "scaler", "scatter", "fp8", "recurrent"):
        options.add_argument(f"--{flag}", action="store_true")
    given = options.parse_args()
    if given.device == "cpu":
        torch.set_num_threads(1)
    training = Training(given)
    ways = {"syncs": counted, "idle": timed, "": graphed if given.graph else plain}
    losses = filled(training, given) if given.fill else ways[given.measure](training, given)
    rank = os.environ.get("RANK", "0")
    for step, loss in enumerate(losses):
        print(f"loss {rank} {step:03} {float(loss).hex()}")
    weights = [p.to_local() if hasattr(p, "to_local") else p for p in training.own.parameters()]
    print("weights", rank, sum(float(p.detach().double().cpu().abs().sum()) for p in weights).hex(), flush=True)
    if given.parallel:
        with contextlib.suppress(Exception):
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
