"""Models of 6 to 3,000 parameters, and a batch for each.

Four are of few numbers: what is dear is the number of tensors. Two are as large as what people train on a CPU: a ResNet
for images of 32 by 32, and a GPT of 5 million parameters.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

N_ROWS = 4


class _Residual(nn.Module):
    """A block of ResNet: two convolutions with batch norm, six parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layers = [(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)) for _ in range(2)]
        (self.first, self.norm), (self.second, self.end) = layers

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.end(self.second(torch.relu(self.norm(self.first(x))))))


class _Layer(nn.Module):
    """A layer of GPT: attention and a feed-forward part, each behind a norm; twelve parameters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).chunk(3, -1)
        x = x + self.proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class _Scales(nn.Module):
    """Many small parameters, which one call uses together."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(n))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.stack(list(self.scales)).mean(0)


def _mlp() -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)]
    return nn.Sequential(*layers), torch.randn(N_ROWS, 32)


def _resnet() -> tuple[nn.Module, Tensor]:
    blocks = [_Residual(8) for _ in range(26)]
    return nn.Sequential(nn.Conv2d(3, 8, 3), *blocks, nn.Flatten(), nn.LazyLinear(8)), torch.randn(N_ROWS, 3, 8, 8)


def _gpt() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(_Layer(16) for _ in range(84))), torch.randn(N_ROWS, 8, 16)


def _images() -> tuple[nn.Module, Tensor]:
    blocks = [_Residual(16) for _ in range(26)]
    pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(nn.Conv2d(3, 16, 3), *blocks, pooled), torch.randn(16, 3, 32, 32)


def _text() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(*(_Layer(256) for _ in range(6))), torch.randn(8, 64, 256)


def _many() -> tuple[nn.Module, Tensor]:
    return _Scales(3000), torch.randn(N_ROWS, 8)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "mlp": _mlp, "resnet": _resnet, "gpt": _gpt, "many": _many, "images": _images, "text": _text,
}  # fmt: skip


def build(name: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
    """A model by its name in `MODELS`, its optimizer, and what trains one step: the same numbers every time."""
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model(x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return model, optimizer, step
