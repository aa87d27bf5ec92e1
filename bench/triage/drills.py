"""One drill: a small job of data-parallel ranks with a fault of its kind somewhere, recorded for real."""

from __future__ import annotations

import contextlib
import copy
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

STEPS = 7
KINDS = {
    "transient-product": ("HC341",),
    "transient-gradient": ("HC341",),
    "transient-unasked": ("HC341",),
    "persistent": ("HC342",),
    "kernel": ("HC343",),
    "software": (),
    "healthy": (),
}
"""Kinds of drills, and the verdict each should end with. Unasked: no schedule, the step itself looks suspicious."""
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
    step = chance.randrange(3, STEPS - 1)
    bit = {"kernel": chance.randrange(17, 32), "transient-unasked": 30}.get(kind, chance.randrange(32))
    return Plan(
        kind=kind,
        number=number,
        seed=chance.randrange(1 << 30),
        rank=chance.randrange(n_ranks),
        step=step if kind != "transient-unasked" else STEPS - 2,
        element=chance.randrange(1 << 20),
        bit=bit,
        product=3 + chance.randrange(5) if kind == "transient-unasked" else chance.randrange(6),  # 3: those of backward
        variant=chosen,
        schedule="never" if kind == "transient-unasked" else f"1,{step}-{step + 1}",
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
    config = Config(
        sdc_check=plan.schedule,
        out=str(directory),
        cure="off",
        replicas="never",
        collectives="never",
        agree_timeout_s=60.0,
    )
    session = Session(config, directory, owns_run=True)
    session.names.add_root(model)
    session.attach()
    batches = torch.Generator().manual_seed(plan.seed + 1 + rank)
    has_effect = True
    try:
        with _device(plan, rank, net) as (at_step, fault):
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
                x = x.half() if plan.is_half else x
                if step == plan.step and isinstance(fault, faulty.Transient):
                    with session.replaying():  # nothing of it looks like training
                        has_effect = _has_effect(fault, net, x, y, far_out=plan.schedule == "never")
                if step == 1:
                    _until_the_ranks_know_each_other(session)
                at_step(step)
                loss = (model(x).float() - y).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        session.close()
    if not has_effect:
        (directory / "without-effect").touch()


def _until_the_ranks_know_each_other(session: Session) -> None:
    """Jobs train for hours: a drill of 7 steps shall not end before the ranks have found together in the background."""
    assembly = session.parts.council._assembly
    if assembly is not None and not assembly.over.wait(120.0):
        raise RuntimeError("the ranks have not found together")


def _has_effect(fault: faulty.Transient, net: nn.Module, x: torch.Tensor, y: torch.Tensor, *, far_out: bool) -> bool:
    """Whether the flip would change any bit of any gradient, or falls where a mask or a ReLU hides it.

    Args:
        far_out: only what makes gradients a thousand times as large counts.
    """
    grads: list[tuple[torch.Tensor, ...]] = []
    for is_hit in (False, True):
        copied, state = copy.deepcopy(net), torch.get_rng_state()
        if is_hit:
            fault.arm()
        loss = (copied(x).float() - y).pow(2).mean()
        grads.append((loss.detach(), *torch.autograd.grad(loss, list(copied.parameters()))))
        fault.left = -1
        torch.set_rng_state(state)
    if far_out:
        before, after = (
            float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in one[1:]]).double())) for one in grads
        )
        return not after <= 1000.0 * before
    return any(a.numpy().tobytes() != b.numpy().tobytes() for a, b in zip(*grads, strict=True))


@contextlib.contextmanager
def _device(plan: Plan, rank: int, net: nn.Module) -> Any:
    """The device of this rank; gives a function to call at the beginning of each step, and its fault."""
    is_hit = rank == plan.rank
    if plan.kind == "transient-gradient":
        yield (_gradient(plan, net) if is_hit else _nothing), None
        return
    fault: Any = None
    if plan.kind in ("transient-product", "transient-unasked") and is_hit:
        fault = faulty.Transient(element=plan.element, bit=plan.bit, n=plan.product)
    elif plan.kind == "persistent" and is_hit:
        fault = faulty.Persistent(element=plan.element, bit=plan.bit)
    if fault is not None:
        with faulty.faulty(fault):
            yield (lambda step: fault.arm() if step == plan.step else None), fault
    elif plan.kind == "kernel":
        with faulty.faulty(_kernel(plan)):
            yield _nothing, None
    else:
        yield _nothing, None


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
