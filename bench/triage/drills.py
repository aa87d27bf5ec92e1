"""One drill: a small job of data-parallel ranks with a fault of its kind somewhere, recorded for real."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bench.triage import faulty
from hypocenter.config import Config
from hypocenter.session.recording import Session

STEPS = 8
KINDS = {
    "transient-product": ("HC341",),
    "transient-gradient": ("HC341",),
    "persistent": ("HC342",),
    "kernel": ("HC343",),
    "software": (),
    "healthy": (),
}
"""Kinds of drills, and the verdict each should end with."""
SOFTWARE = ("overflow", "nan-in-batch", "log-of-zero", "learning-rate", "counter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything random about a drill; the same on all ranks."""

    kind: str
    number: int
    seed: int
    rank: int  # that is hit
    step: int
    element: int
    bit: int
    product: int  # of the step, that is hit
    variant: str
    schedule: str
    width: int
    has_norm: bool
    optimizer: str
    is_half: bool = False


def plan(kind: str, number: int, seed: int, n_ranks: int) -> Plan:
    """Draw a drill."""
    chance = random.Random(f"{seed} {kind} {number}")
    variant = {
        "kernel": ("bit", "last-product", "bfloat16", "rows"), "software": SOFTWARE,
        "healthy": ("dropout", "plain", "noise"),
    }.get(kind, ("dropout", "plain"))  # fmt: skip
    chosen = chance.choice(variant)
    return Plan(
        kind=kind,
        number=number,
        seed=chance.randrange(1 << 30),
        rank=chance.randrange(n_ranks),
        step=chance.randrange(3, STEPS - 1),
        element=chance.randrange(1 << 20),
        bit=chance.randrange(17, 32) if kind == "kernel" else chance.randrange(32),
        product=chance.randrange(6),
        variant=chosen,
        schedule="every=1",
        width=chance.choice((16, 24, 33)),
        has_norm=chance.random() < 0.5,
        optimizer=chance.choice(("SGD", "AdamW")),
        is_half=chosen == "overflow",
    )


class Net(nn.Module):
    """A small regression net; what may be wrong with it is switched on from outside."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self.first = nn.Linear(12, plan.width)
        self.norm = nn.LayerNorm(plan.width) if plan.has_norm else nn.Identity()
        self.drop = nn.Dropout(0.2 if plan.variant == "dropout" else 0.0)
        self.second = nn.Linear(plan.width, plan.width)
        self.head = nn.Linear(plan.width, 2)
        self.variant, self.is_bad = plan.variant, False
        self._noise = torch.Generator().manual_seed(plan.seed)
        self.n_calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(torch.nn.functional.gelu(self.norm(self.first(x))))
        if self.variant == "noise":  # from a generator of its own, that no replay can know of
            x = x + 0.01 * torch.randn(x.shape, generator=self._noise)
        if self.variant == "counter":  # behaves otherwise at each call
            self.n_calls += 1
            x = x * (1.0 + 0.1 * self.n_calls)
        x = torch.relu(self.second(x))
        if self.variant == "log-of-zero" and self.is_bad:
            x = torch.log(x) * 1e-3
        return self.head(x)


def run(plan: Plan, directory: Path) -> None:
    """Train with the fault, recorded to `directory`."""
    rank = dist.get_rank()
    torch.manual_seed(plan.seed)
    net = Net(plan)
    if plan.is_half:
        net = net.half()
    model = nn.parallel.DistributedDataParallel(net)
    rate = 1e12 if plan.variant == "learning-rate" else 0.01
    optimizer = getattr(torch.optim, plan.optimizer)(model.parameters(), lr=0.01)
    config = Config(sdc_check=plan.schedule, out=str(directory), cure="off", replicas="never", collectives="never")
    session = Session(config, directory, owns_run=True)
    session.names.add_root(model)
    session.attach()
    batches = torch.Generator().manual_seed(plan.seed + 1 + rank)
    try:
        with _device(plan, rank, net) as at_step:
            for step in range(STEPS):
                x, y = torch.randn(16, 12, generator=batches), torch.randn(16, 2, generator=batches)
                is_bad = step >= plan.step
                if plan.variant == "nan-in-batch" and step == plan.step and rank == plan.rank:
                    x[3, 4] = float("nan")
                if plan.variant == "overflow" and step == plan.step:
                    x *= 3e4
                net.is_bad = is_bad
                if is_bad:
                    optimizer.param_groups[0]["lr"] = rate
                at_step(step)
                x = x.half() if plan.is_half else x
                loss = (model(x).float() - y).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        session.close()


@contextlib.contextmanager
def _device(plan: Plan, rank: int, net: nn.Module) -> Any:
    """The device of this rank; gives a function to call at the beginning of each step."""
    is_hit = rank == plan.rank
    if plan.kind == "transient-gradient":
        yield _gradient(plan, net) if is_hit else _nothing
        return
    fault: Any = None
    if plan.kind == "transient-product" and is_hit:
        fault = faulty.Transient(element=plan.element, bit=plan.bit, n=plan.product)
    elif plan.kind == "persistent" and is_hit:
        fault = faulty.Persistent(element=plan.element, bit=plan.bit)
    if fault is not None:
        with faulty.faulty(fault):
            yield lambda step: fault.arm() if step == plan.step else None
    elif plan.kind == "kernel":
        with faulty.faulty(_kernel(plan)):
            yield _nothing
    else:
        yield _nothing


def _gradient(plan: Plan, net: nn.Module) -> Callable[[int], None]:
    """Flips a bit of one gradient before anybody reduces it, once."""
    parameters = list(net.parameters())
    armed = [False]

    def hook(grad: torch.Tensor) -> torch.Tensor:
        if not armed[0]:
            return grad
        armed[0] = False
        grad = grad.clone()
        faulty.flip(grad, plan.element, plan.bit)
        return grad

    parameters[plan.element % len(parameters)].register_hook(hook)

    def at_step(step: int) -> None:
        armed[0] = armed[0] or step == plan.step

    return at_step


def _kernel(plan: Plan) -> faulty.Corrupt:
    return {
        "bit": faulty.bits_of_result(plan.bit), "last-product": faulty.last_product_missing,
        "bfloat16": faulty.in_bfloat16, "rows": faulty.rows_swapped,
    }[plan.variant]  # fmt: skip


def _nothing(step: int) -> None:
    """A healthy device."""
