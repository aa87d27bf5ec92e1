"""Eight kinds of training programs, each with places at which something can be made to jump."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ROWS, WIDTH, LENGTH, N_TOKENS = 16, 16, 8, 40
Batch = dict[str, Tensor]


class Place(nn.Module):
    """Where a kind of jump is planted: its operation in every step, at one step with another strength or other rows."""

    def __init__(self) -> None:
        super().__init__()
        self.act: Callable[[Place, Tensor], Tensor] = lambda place, x: x
        self.strength = 1.0
        self.marked: Tensor | None = None  # of each row of the batch, 1 where it is the faulty one

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self, x)

    def of_rows(self, x: Tensor) -> Tensor:
        """The mark in the shape of a tensor whose first dimension is the batch."""
        assert self.marked is not None
        return self.marked.reshape(-1, *[1] * (x.dim() - 1)).to(x.dtype)


class Model(nn.Module):
    """A model that tells its places which rows are marked."""

    def mark(self, marked: Tensor) -> None:
        for module in self.modules():
            if isinstance(module, Place):
                module.marked = marked


class Block(nn.Module):
    """Attention over the second dimension, then a hidden layer."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.place, self.drop, self.is_causal = Place(), nn.Dropout(0.1), is_causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / WIDTH**0.5
        if self.is_causal:
            n = x.shape[1]
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        x = x + self.out(scores.softmax(-1) @ v)
        return x + self.place(self.drop(self.down(functional.gelu(self.up(self.second(x))))))


class Gpt(Model):
    """Tokens in, the next token out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(N_TOKENS, WIDTH), nn.Parameter(torch.randn(4 * LENGTH, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(is_causal=True) for _ in range(2))
        self.norm, self.head, self.place = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, N_TOKENS), Place()

    def forward(self, x: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        hidden = self.embed(x) + self.position[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.place(self.head(self.norm(hidden)))


class Vit(Model):
    """An image in, its class out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 4, 4)
        self.blocks = nn.ModuleList(Block(is_causal=False) for _ in range(2))
        self.head, self.place = nn.Linear(WIDTH, 10), Place()

    def forward(self, x: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        hidden = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.place(hidden.mean(1)))


class Graph(Model):
    """Features of nodes and an adjacency in, a number for each graph out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.places, self.out = nn.ModuleList([Place(), Place()]), nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor, edges: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        near = edges / edges.sum(-1, keepdim=True).clamp(min=1)
        hidden = self.places[0](torch.relu(self.first(near @ x)))
        return self.out(self.places[1](self.second(near @ hidden)).mean(1)).squeeze(-1)


class Cell(nn.Module):
    """One step in time."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.keep, self.place = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False), Place()

    def forward(self, x: Tensor, h: Tensor) -> Tensor:
        return self.place(torch.tanh(self.read(x) + self.keep(h)))


class Recurrent(Model):
    """A sequence in, a number out: a cell of its own beside a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.gru = Cell(), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.place, self.out = Place(), nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.out(self.place(torch.cat([h, self.gru(x)[0][:, -1]], -1))).squeeze(-1)


class TwoTowers(Model):
    """Two views in, their vectors out."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), Place(), nn.Linear(32, WIDTH))
        self.right = nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        self.place, self.log_temperature = Place(), nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor, other: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        left, right = functional.normalize(self.left(x), dim=-1), functional.normalize(self.right(other), dim=-1)
        return self.place(left @ right.T / self.log_temperature.exp())


class Denoiser(Model):
    """A noisy image and its time in, the noise out."""

    def __init__(self) -> None:
        super().__init__()
        self.time, self.into, self.out = nn.Embedding(10, WIDTH), nn.Linear(WIDTH, 48), nn.Linear(48, WIDTH)
        self.mid, self.norm, self.places = nn.Linear(48, 48), nn.LayerNorm(48), nn.ModuleList([Place(), Place()])
        self.scale = nn.Linear(WIDTH, 48)

    def forward(self, x: Tensor, t: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        hidden = self.places[0](functional.silu(self.into(x))) * (1 + self.scale(self.time(t)))
        return self.out(self.places[1](functional.silu(self.mid(self.norm(hidden)))))


class Mlp(Model):
    """Generator, discriminator, policy."""

    def __init__(self, n_out: int, *, is_normalised: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(WIDTH, 32), nn.Linear(32, 32), nn.Linear(32, n_out)
        self.norm: nn.Module = nn.BatchNorm1d(32) if is_normalised else nn.Identity()
        self.places = nn.ModuleList([Place(), Place()])

    def forward(self, x: Tensor, marked: Tensor) -> Tensor:
        self.mark(marked)
        hidden = self.places[0](torch.relu(self.norm(self.first(x))))
        return self.last(self.places[1](functional.leaky_relu(self.second(hidden), 0.2)))


@dataclass
class Part:
    """What one optimizer trains."""

    model: nn.Module
    loss: Callable[[Batch], Tensor]
    lr: float = 1e-3
    optimizer: Any = None


@dataclass
class How:
    """What is the same in all programs."""

    clip: bool = False
    amp: str = ""  # bf16, fp16
    n_micro: int = 1


@dataclass
class Terms:
    """What a loss is made of besides its main term; a fault changes it for a step."""

    weight: float = 0.1
    reduction: str = "mean"
    is_masked: bool = False  # a mean over a mask, whose numerator forgets it
    count: float = 1.0  # share of the mask that is left


def _nothing(step: int) -> None:
    """The program is healthy."""


@dataclass
class Program:
    """One program. `before` changes it ahead of a step, `batch_at` what it reads."""

    parts: list[Part]
    batch: Callable[[torch.Generator], Batch]
    how: How = field(default_factory=How)
    terms: Terms = field(default_factory=Terms)
    before: Callable[[int], None] = _nothing
    after_backward: Callable[[int], None] = _nothing
    batch_at: Callable[[int, int, Batch], Batch] = lambda step, micro, batch: batch

    @property
    def places(self) -> dict[str, tuple[Part, Place]]:
        """By the name of the module in its model, the first part's."""
        found = ((part, name, module) for part in reversed(self.parts) for name, module in part.model.named_modules())
        return {name: (part, module) for part, name, module in found if isinstance(module, Place)}

    def train(self, n_steps: int, seed: int) -> list[tuple[float, float]]:
        """Losses and gradient norms of the first part."""
        for part in self.parts:
            part.optimizer = torch.optim.AdamW(part.model.parameters(), lr=part.lr)
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=25) if self.how.amp == "fp16" else None
        generator, course = torch.Generator().manual_seed(seed), list[tuple[float, float]]()
        for step in range(n_steps):
            self.before(step)
            batches = [self.batch_at(step, i, self.batch(generator)) for i in range(self.how.n_micro)]
            for part in self.parts:
                course += [self._update(part, batches, scaler)][: part is self.parts[0]]
            if scaler is not None:
                scaler.update()
        return course

    def _update(self, part: Part, batches: list[Batch], scaler: Any) -> tuple[float, float]:
        part.optimizer.zero_grad()
        total = 0.0
        for batch in batches:
            with self._autocast():
                loss = part.loss(batch) / len(batches)
            (loss if scaler is None else scaler.scale(loss)).backward()
            total += float(loss.detach())
        if scaler is not None:
            scaler.unscale_(part.optimizer)
        norm = nn.utils.get_total_norm([p.grad for p in part.model.parameters() if p.grad is not None])
        if self.how.clip:
            nn.utils.clip_grad_norm_(part.model.parameters(), 1.0)
        part.optimizer.step() if scaler is None else scaler.step(part.optimizer)
        return total, float(norm)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if not self.how.amp:
            return contextlib.nullcontext()
        return torch.autocast("cpu", torch.bfloat16 if self.how.amp == "bf16" else torch.float16)


def reduced(errors: Tensor, outputs: Tensor, terms: Terms) -> Tensor:
    """A loss of errors, one for each sample, and a small penalty."""
    errors = errors.float()
    if terms.is_masked:
        count = torch.ones_like(errors).sum() * terms.count
        main = errors.sum() / count  # JUMP: mean over a small count
    elif terms.reduction == "sum":
        main = errors.sum()  # JUMP: sum in place of mean
    else:
        main = errors.mean()
    return main + terms.weight * outputs.float().square().mean()  # JUMP: weight of a term


def _tokens(g: torch.Generator) -> Batch:
    x = torch.randint(0, N_TOKENS, (ROWS, LENGTH), generator=g)
    return {"x": x, "y": (x * 3 + 1) % N_TOKENS}


def gpt() -> Program:
    model, terms = Gpt(), Terms(weight=0.01)

    def loss(b: Batch) -> Tensor:
        logits = model(b["x"], b["marked"])
        errors = functional.cross_entropy(logits.flatten(0, 1).float(), b["y"].flatten(), reduction="none")
        return reduced(errors.view(len(b["x"]), -1).mean(1), logits, terms)

    return Program([Part(model, loss)], _marked(_tokens), terms=terms)


def vit() -> Program:
    model, terms = Vit(), Terms(weight=0.01)

    def batch(g: torch.Generator) -> Batch:
        y = torch.randint(0, 10, (ROWS,), generator=g)
        return {"x": torch.randn(ROWS, 3, 16, 16, generator=g) + y.view(-1, 1, 1, 1) / 10, "y": y}

    def loss(b: Batch) -> Tensor:
        logits = model(b["x"], b["marked"])
        return reduced(functional.cross_entropy(logits.float(), b["y"], reduction="none"), logits, terms)

    return Program([Part(model, loss)], _marked(batch), terms=terms)


def graph() -> Program:
    model, terms = Graph(), Terms()

    def batch(g: torch.Generator) -> Batch:
        x = torch.randn(ROWS, 6, WIDTH, generator=g)
        edges = (torch.rand(ROWS, 6, 6, generator=g) < 0.5).float()
        return {"x": x, "edges": edges, "y": x[:, :, 0].mean(1) + 1}

    def loss(b: Batch) -> Tensor:
        out = model(b["x"], b["edges"], b["marked"])
        return reduced((out - b["y"]).square(), out, terms)

    return Program([Part(model, loss)], _marked(batch), terms=terms)


def recurrent() -> Program:
    model, terms = Recurrent(), Terms()

    def batch(g: torch.Generator) -> Batch:
        x = torch.randn(ROWS, LENGTH, WIDTH, generator=g)
        return {"x": x, "y": x[:, -1, 0] + 0.5}

    def loss(b: Batch) -> Tensor:
        out = model(b["x"], b["marked"])
        return reduced((out - b["y"]).square(), out, terms)

    return Program([Part(model, loss)], _marked(batch), terms=terms)


def contrastive() -> Program:
    model, terms = TwoTowers(), Terms(weight=0.001)

    def batch(g: torch.Generator) -> Batch:
        x = torch.randn(ROWS, WIDTH, generator=g)
        return {"x": x, "other": x + 0.3 * torch.randn(ROWS, WIDTH, generator=g)}

    def loss(b: Batch) -> Tensor:
        logits = model(b["x"], b["other"], b["marked"]).float()
        own = torch.arange(len(logits))
        errors = functional.cross_entropy(logits, own, reduction="none")
        return reduced(errors + functional.cross_entropy(logits.T, own, reduction="none"), logits, terms)

    return Program([Part(model, loss)], _marked(batch), terms=terms)


def diffusion() -> Program:
    model, terms = Denoiser(), Terms()

    def batch(g: torch.Generator) -> Batch:
        t = torch.randint(0, 10, (ROWS,), generator=g)
        noise, share = torch.randn(ROWS, WIDTH, generator=g), ((t + 1) / 11).unsqueeze(-1)
        return {"x": (1 - share).sqrt() + share.sqrt() * noise, "t": t, "y": noise}

    def loss(b: Batch) -> Tensor:
        out = model(b["x"], b["t"], b["marked"])
        return reduced((out - b["y"]).square().mean(1), out, terms)

    return Program([Part(model, loss)], _marked(batch), terms=terms)


def adversarial() -> Program:
    terms = Terms()
    judge, maker = Mlp(1), Mlp(WIDTH, is_normalised=True)

    def batch(g: torch.Generator) -> Batch:
        return {"x": torch.randn(ROWS, WIDTH, generator=g), "y": torch.randn(ROWS, WIDTH, generator=g) * 0.5 + 1}

    def judged(b: Batch) -> Tensor:
        with torch.no_grad():
            made = maker(b["x"], torch.zeros_like(b["marked"]))
        true, false = judge(b["y"], b["marked"]).squeeze(-1), judge(made, torch.zeros_like(b["marked"])).squeeze(-1)
        return reduced(functional.softplus(-true) + functional.softplus(false), true, terms)

    def fooled(b: Batch) -> Tensor:
        out = judge(maker(b["x"], b["marked"]), torch.zeros_like(b["marked"])).squeeze(-1)
        return functional.softplus(-out.float()).mean()

    return Program([Part(judge, judged), Part(maker, fooled)], _marked(batch), terms=terms)


def policy() -> Program:
    model, terms = Mlp(4, is_normalised=True), Terms(weight=0.01)

    def batch(g: torch.Generator) -> Batch:
        x, action = torch.randn(ROWS, WIDTH, generator=g), torch.randint(0, 4, (ROWS,), generator=g)
        gained = (action == x[:, :4].argmax(1)).float() * 2 - 0.5
        return {"x": x, "action": action, "y": gained}

    def loss(b: Batch) -> Tensor:
        logits = model(b["x"], b["marked"])
        chosen = logits.float().log_softmax(-1).gather(1, b["action"].unsqueeze(1)).squeeze(1)
        return reduced(-chosen * b["y"], logits, terms)

    return Program([Part(model, loss)], _marked(batch), terms=terms)


def _marked(batch: Callable[[torch.Generator], Batch]) -> Callable[[torch.Generator], Batch]:
    return lambda g: batch(g) | {"marked": torch.zeros(ROWS)}


PROGRAMS: dict[str, Callable[[], Program]] = {
    f.__name__: f for f in (gpt, vit, graph, recurrent, contrastive, diffusion, adversarial, policy)
}


def places_of(program: Program) -> Iterator[str]:
    """Names of the places of the first part."""
    yield from (name for name, (part, _) in program.places.items() if part is program.parts[0])
