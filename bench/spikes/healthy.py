"""Ten programs in which nothing is wrong, small enough to train for long: nothing is to be warned of in any."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from bench.spikes.programs import Gpt, TwoTowers

HEALTHY: dict[str, Callable[[int, torch.Generator], None]] = {}
_ROWS = 16


def _program(train: Callable[[int, torch.Generator], None]) -> Callable[[int, torch.Generator], None]:
    HEALTHY[train.__name__.replace("_", " ")] = train
    return train


def _optimize(
    model: nn.Module, losses: Iterator[Tensor], *, lr: float = 1e-3, clip: float | None = None, restarts: bool = False
) -> None:
    """Adam, one update for each loss; with restarts a cosine schedule of 500 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 500) if restarts else None
    for loss in losses:
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()


@_program
def tiny_gpt(n: int, g: torch.Generator) -> None:
    model = Gpt()

    def losses() -> Iterator[Tensor]:
        for _ in range(n):
            x = torch.randint(0, 40, (_ROWS, 8), generator=g)
            yield functional.cross_entropy(model(x, torch.zeros(_ROWS)).flatten(0, 1), ((x * 3 + 1) % 40).flatten())

    _optimize(model, losses(), clip=1.0, restarts=True)


class _Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(x + self.norms[1](self.second(h)))


@_program
def resnet(n: int, g: torch.Generator) -> None:
    """With epochs of 32 batches and an evaluation after each."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), _Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    )
    images, labels = torch.randn(32, _ROWS, 3, 8, 8, generator=g), torch.randint(0, 5, (32, _ROWS), generator=g)

    def losses() -> Iterator[Tensor]:
        order = torch.arange(32)
        for step in range(n):
            if step % 32 == 0:
                model.eval()
                with torch.no_grad():
                    model(images[0])
                model.train()
                order = torch.randperm(32, generator=g)
            at = int(order[step % 32])
            yield functional.cross_entropy(model(images[at]), labels[at])

    _optimize(model, losses(), lr=3e-4)


@_program
def gru_of_variable_length(n: int, g: torch.Generator) -> None:
    model = nn.ModuleDict({"gru": nn.GRU(8, 16, batch_first=True), "head": nn.Linear(16, 1)})

    def losses() -> Iterator[Tensor]:
        for _ in range(n):
            length = int(torch.randint(2, 12, (1,), generator=g))
            x = torch.randn(_ROWS, length, 8, generator=g)
            out = model["head"](model["gru"](x)[0][:, -1]).squeeze(-1)
            yield functional.mse_loss(out, x[:, 0, 0] + x[:, -1, 1])

    _optimize(model, losses(), clip=1.0)


def _mlp(*sizes: int) -> nn.Sequential:
    layers = [each for a, b in itertools.pairwise(sizes) for each in (nn.Linear(a, b), nn.LeakyReLU(0.2))]
    return nn.Sequential(*layers[:-1])


@_program
def gan(n: int, g: torch.Generator) -> None:
    """With a penalty on the gradient of the judge in every 16th step."""
    judge, maker = _mlp(4, 32, 32, 1), _mlp(4, 32, 32, 4)
    judging = torch.optim.Adam(judge.parameters(), lr=2e-4, betas=(0.5, 0.99))
    making = torch.optim.Adam(maker.parameters(), lr=2e-4, betas=(0.5, 0.99))
    for step in range(n):
        true, noise = torch.randn(_ROWS, 4, generator=g) * 0.5 + 1, torch.randn(_ROWS, 4, generator=g)
        judging.zero_grad()
        loss = functional.softplus(-judge(true)).mean() + functional.softplus(judge(maker(noise).detach())).mean()
        if step % 16 == 0:
            wanted = true.clone().requires_grad_()
            slope = torch.autograd.grad(judge(wanted).sum(), wanted, create_graph=True)[0]
            loss = loss + slope.square().sum(1).mean()
        loss.backward()
        judging.step()
        making.zero_grad()
        functional.softplus(-judge(maker(noise))).mean().backward()
        making.step()


@_program
def ppo(n: int, g: torch.Generator) -> None:
    """Eight updates on each batch of play, with clipped ratios; the policy gets better, so gains change."""
    model = nn.ModuleDict({"policy": _mlp(6, 32, 4), "value": _mlp(6, 32, 1)})

    def losses() -> Iterator[Tensor]:
        for step in range(n):
            if step % 8 == 0:
                x = torch.randn(32, 6, generator=g)
                with torch.no_grad():
                    before = model["policy"](x).log_softmax(-1)
                    action = torch.multinomial(before.exp(), 1, generator=g)
                    gain = (action.squeeze(1) == x[:, :4].argmax(1)).float()
                    edge = gain - model["value"](x).squeeze(1)
                    edge = (edge - edge.mean()) / (edge.std() + 1e-8)
            log = model["policy"](x).log_softmax(-1)
            ratio = (log - before).gather(1, action).squeeze(1).exp()
            policy = -torch.minimum(ratio * edge, ratio.clamp(0.8, 1.2) * edge).mean()
            entropy = -(log.exp() * log).sum(-1).mean()
            yield policy + 0.5 * functional.mse_loss(model["value"](x).squeeze(1), gain) - 0.01 * entropy

    _optimize(model, losses(), clip=0.5)


@_program
def contrastive(n: int, g: torch.Generator) -> None:
    model = TwoTowers()

    def losses() -> Iterator[Tensor]:
        for _ in range(n):
            x = torch.randn(_ROWS, 16, generator=g)
            logits = model(x, x + 0.3 * torch.randn(_ROWS, 16, generator=g), torch.zeros(_ROWS))
            own = torch.arange(_ROWS)
            yield (functional.cross_entropy(logits, own) + functional.cross_entropy(logits.T, own)) / 2

    _optimize(model, losses())


@_program
def vae(n: int, g: torch.Generator) -> None:
    """The weight of the divergence rises in 2,000 steps."""
    model = nn.ModuleDict({"encoder": _mlp(8, 32, 8), "decoder": _mlp(4, 32, 8)})

    def losses() -> Iterator[Tensor]:
        for step in range(n):
            x = torch.randn(_ROWS, 8, generator=g) + torch.randint(-1, 2, (_ROWS, 1), generator=g) * 2
            mean, log_variance = model["encoder"](x).chunk(2, -1)
            z = mean + torch.randn(_ROWS, 4, generator=g) * (0.5 * log_variance).exp()
            divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1).mean()
            yield (model["decoder"](z) - x).square().sum(-1).mean() + min(1.0, step / 2000) * divergence

    _optimize(model, losses())


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(_mlp(8, 16, 8) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        odds = self.router(x).softmax(-1)
        best, chosen = odds.topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]) * best[rows, place].unsqueeze(1))
        load = functional.one_hot(chosen[:, 0], 4).float().mean(0)
        return out, 4 * (load * odds.mean(0)).sum()


@_program
def mixture_of_experts(n: int, g: torch.Generator) -> None:
    model, target = _Experts(), torch.randn(8, 8, generator=g)

    def losses() -> Iterator[Tensor]:
        for _ in range(n):
            x = torch.randn(32, 8, generator=g)
            out, balance = model(x)
            yield functional.mse_loss(out, torch.relu(x @ target)) + 0.01 * balance

    _optimize(model, losses())


@_program
def float16_with_a_scaler(n: int, g: torch.Generator) -> None:
    """The scale grows until it overflows, again and again; two micro-batches."""
    model = nn.Sequential(nn.Linear(8, 32), nn.LayerNorm(32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=200)
    for _ in range(n):
        optimizer.zero_grad()
        for _ in range(2):
            x = torch.randn(_ROWS, 8, generator=g)
            with torch.autocast("cpu", torch.float16):
                loss = functional.cross_entropy(model(x).float(), x[:, :3].argmax(1)) / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@_program
def ddp(n: int, g: torch.Generator) -> None:
    """One rank of gloo: the wrapper, its hooks and buckets."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(_mlp(8, 32, 32, 1))

        def losses() -> Iterator[Tensor]:
            for _ in range(n):
                x = torch.randn(_ROWS, 8, generator=g)
                yield functional.smooth_l1_loss(model(x).squeeze(1), x.square().sum(1).sqrt())

        _optimize(model, losses(), restarts=True)
    finally:
        dist.destroy_process_group()
