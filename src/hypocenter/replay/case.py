"""What an investigation starts from, works on, and ends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from hypocenter.diagnose.evidence import Evidence, Trigger
from hypocenter.tap.gradients import local
from hypocenter.tap.nodes import Node
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.tracer import OpTracer

HIDDEN: tuple[Trigger, ...] = ("dead-grad", "nonfinite-activation")
"""Triggers at which loss and gradients are finite: only an overflow that somebody hid can be meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How much of the user's job a search for a cure may cost."""

    replays: int
    seconds: float


MODEST_SCALE = 1024.0
"""A loss scale that loses few gradients to underflow: what overflows only above it does so in a scaler's warm-up."""

BRIEF = Budget(replays=60, seconds=20.0)  # at failure time: the job waits
FULL = Budget(replays=100_000, seconds=24 * 3600.0)  # when asked for: `hypocenter cure`
BUDGETS = {"auto": BRIEF, "full": FULL, "off": Budget(replays=0, seconds=0.0)}  # by the option `cure`


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A failed step: everything the investigation starts from."""

    id: str
    trigger: Trigger
    step: int
    rank: int
    world_size: int
    microbatches: tuple[Microbatch, ...]
    bad_params: tuple[str, ...]  # gradients not finite when first seen this step
    n_params: int
    loss: float | None
    loss_scale: float | None
    healthy_steps: int
    clip: str = ""
    seed_scale: float = 1.0  # multiplies what backward starts from: 1 / loss scale when the scale has no part in it
    train_scale: float | None = None  # loss scale at which a cure should let it train; None: that of the step
    budget: Budget = BRIEF  # of the search for a cure

    @property
    def scales(self) -> tuple[float | None, ...]:
        """The loss scales to search a cure at, falling, the wanted one first; (None,) without a scaler."""
        if self.loss_scale is None:
            return (None,)
        wanted = max(self.loss_scale, self.train_scale or 0.0)  # collapsed: what it trained with; grown: what failed
        return (wanted, *(scale for scale in (MODEST_SCALE, 1.0) if scale < wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One traced micro-batch of a case."""

    case: Case
    named: list[tuple[str, torch.nn.Parameter]]
    tracer: OpTracer
    microbatch: Microbatch | None  # None: it cannot be replayed as a whole, so nothing can be tried on it

    @property
    def parameters(self) -> list[Any]:
        """The parameters without their names."""
        return [parameter for _, parameter in self.named]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Evidence, and the op that the bundle is made from."""

    evidence: Evidence
    node: Node | None = None
    was_finite: bool = False  # the replay, on all ranks


def is_finite(tensor: torch.Tensor) -> bool:
    """Return whether every element is finite; of a DTensor, every element that is on this rank."""
    values = local(tensor)  # asking for all would be a collective
    return values is None or bool(torch.isfinite(values).all())
