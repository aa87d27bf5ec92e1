"""Healthy training programs of different kinds. Each has the same stages, at which an error can be planted."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Act = Callable[[int], None]
N_TOKENS, WIDTH = 20, 12


def _nothing(step: int) -> None:
    """The program is healthy."""


@dataclass
class Stages:
    """What an error replaces. Each is called with the step."""

    before_reduction: Act = _nothing  # gradients of this rank's micro-batches are there
    after_backward: Act = _nothing  # gradients of all micro-batches, of all ranks, are there
    after_clip: Act = _nothing
    around_update: Callable[[int], contextlib.AbstractContextManager[None]] = lambda step: contextlib.nullcontext()
    after_update: Act = _nothing
    n_updates: Callable[[int], int] = lambda step: 1
    is_zeroed: Callable[[int], bool] = lambda step: True
    after_microbatch: Callable[[int, int], None] = lambda step, number: None
    times: Callable[[int, int], int] = lambda step, number: 1  # how often backward is called for a micro-batch
    weight: Callable[[int, int], float] = lambda step, number: 1.0  # of a micro-batch's loss


class Net(nn.Module):
    """Embedding, norm, two branches, dropout, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(N_TOKENS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, N_TOKENS)
        self.cut: Callable[[Tensor], Tensor] = lambda hidden: hidden
        self.branch: Callable[[Tensor], Tensor] = lambda hidden: hidden

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.cut(self.norm(self.embed(tokens)))
        return self.head(hidden + self.drop(self.down(functional.gelu(self.up(self.branch(hidden))))))


class Experts(nn.Module):
    """Two experts, of which each token takes one; a loss of its own for the router."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.router = nn.Embedding(N_TOKENS, WIDTH), nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH)) for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, N_TOKENS)
        self.cut: Callable[[Tensor], Tensor] = lambda hidden: hidden
        self.branch: Callable[[Tensor], Tensor] = lambda hidden: hidden

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.cut(self.embed(tokens))
        share = self.router(hidden).softmax(-1)
        first = (share.argmax(-1) == 0).unsqueeze(-1)
        inner = self.branch(hidden)
        both = [share[:, i : i + 1] * expert(inner) for i, expert in enumerate(self.experts)]
        self.balance = share.mean(0).square().sum()
        return self.head(self.norm(hidden + torch.where(first, both[0], both[1])))


class Adapted(nn.Module):
    """A frozen layer with a low-rank adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Net().requires_grad_(False)
        self.a, self.b = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, N_TOKENS)
        self.cut: Callable[[Tensor], Tensor] = lambda hidden: hidden
        self.branch: Callable[[Tensor], Tensor] = lambda hidden: hidden

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.base.norm(self.base.embed(tokens))
        return self.head(self.norm(self.cut(hidden + self.b(self.branch(self.a(hidden))))))


class HandMade(torch.optim.Optimizer):
    """Momentum with a sign, as people write their own."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "beta": 0.9})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    mean.mul_(group["beta"]).add_(p.grad, alpha=1 - group["beta"])
                    p.add_(mean.sign(), alpha=-group["lr"])


@dataclass
class Program:
    """One program: what it trains, and its stages."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    n_micro: int = 1
    clip: float | None = None
    autocast: torch.dtype | None = None
    scaler: torch.amp.GradScaler | None = None
    stages: Stages = field(default_factory=Stages)
    other: Callable[[], None] = lambda: None  # an update of another model, before this one's
    called: nn.Module | None = None  # what is called in place of the model: a wrapper of it
    reduce: Act = _nothing  # the program's own average over ranks
    share: Act = _nothing  # what it hands to the other ranks after an update
    batches: torch.Generator | None = None  # of this rank; None: the global one

    def train(self, n_steps: int) -> None:
        """The loop."""
        for step in range(n_steps):
            self.other()
            if self.stages.is_zeroed(step):
                self.optimizer.zero_grad()
            for number in range(self.n_micro):
                self._microbatch(step, number)
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            self.stages.before_reduction(step)
            self.reduce(step)
            self.stages.after_backward(step)
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.stages.after_clip(step)
            for _ in range(self.stages.n_updates(step)):
                with self.stages.around_update(step):
                    if self.scaler is not None:
                        self.scaler.step(self.optimizer)
                    else:
                        self.optimizer.step()
            if self.scaler is not None:
                self.scaler.update()
            self.share(step)
            self.stages.after_update(step)

    def _microbatch(self, step: int, number: int) -> None:
        tokens = torch.randint(0, N_TOKENS, (16,), generator=self.batches)
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            logits = (self.called or self.model)(tokens)
            loss = functional.cross_entropy(logits.float(), (tokens + 1) % N_TOKENS) / self.n_micro
        if isinstance(self.model, Experts):
            loss = loss + 0.1 * self.model.balance / self.n_micro
        weight = self.stages.weight(step, number)
        if weight != 1.0:
            loss = weight * loss
        if self.scaler is not None:
            loss = self.scaler.scale(loss)
        times = self.stages.times(step, number)
        for count in range(times):
            loss.backward(retain_graph=count < times - 1)
        self.stages.after_microbatch(step, number)


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)


def plain() -> Program:
    """One batch, one update."""
    model = Net()
    return Program(model, _adam(model))


def momentum() -> Program:
    """SGD, weights of two groups."""
    model = Net()
    groups = [
        {"params": list(model.embed.parameters()), "lr": 0.05},
        {"params": [p for n, p in model.named_parameters() if "embed" not in n]},
    ]
    return Program(model, torch.optim.SGD(groups, lr=0.1, momentum=0.9), clip=1.0)


def accumulating() -> Program:
    """Three micro-batches and a clip."""
    model = Net()
    return Program(model, _adam(model), n_micro=3, clip=0.5)


def bfloat16() -> Program:
    """Autocast."""
    model = Net()
    return Program(model, _adam(model), n_micro=2, autocast=torch.bfloat16)


def scaled() -> Program:
    """A loss scale."""
    model = Net()
    return Program(model, _adam(model), n_micro=2, clip=0.5, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**12))


def adapters() -> Program:
    """A frozen model with adapters."""
    model = Adapted()
    return Program(model, _adam(model))


def experts() -> Program:
    """A mixture of experts with a loss of its own."""
    model = Experts()
    return Program(model, _adam(model), n_micro=2)


def hand_made() -> Program:
    """An optimizer of the program's own."""
    model = Net()
    return Program(model, HandMade(model.parameters(), 1e-3), clip=1.0)


def adversarial() -> Program:
    """Another model is updated in the same step."""
    model, critic = Net(), nn.Sequential(nn.Linear(N_TOKENS, 8), nn.ReLU(), nn.Linear(8, 1))
    own = torch.optim.Adam(critic.parameters(), lr=1e-3)

    def other() -> None:
        own.zero_grad()
        with torch.no_grad():
            made = model(torch.randint(0, N_TOKENS, (16,)))
        (critic(made).mean() + functional.softplus(critic(torch.randn(16, N_TOKENS))).mean()).backward()
        own.step()

    return Program(model, _adam(model), other=other)


PROGRAMS: dict[str, Callable[[], Program]] = {
    make.__name__: make
    for make in (plain, momentum, accumulating, bfloat16, scaled, adapters, experts, hand_made, adversarial)
}
