"""Six models written by hand, each with the batch that it eats and the loss that its program takes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

N, LENGTH, VOCAB, WIDTH, CLASSES = 6, 10, 40, 16, 5


class Attention(nn.Module):
    """Of one head; `causal` or with a mask of padding."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.causal = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), causal

    def forward(self, x: Tensor, padded: Tensor | None = None) -> Tensor:
        """[n, length, width]; padded: [n, length], True where there is nothing."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) * WIDTH**-0.5
        if self.causal:
            scores = scores.masked_fill(self.hidden(x.shape[1]), -1e9)
        if padded is not None:
            scores = scores.masked_fill(padded.unsqueeze(1), -1e9)
        return self.out(self.weights(scores) @ v)

    def hidden(self, length: int) -> Tensor:
        """What is not to be seen."""
        return torch.ones(length, length, dtype=torch.bool).triu(1)

    def weights(self, scores: Tensor) -> Tensor:
        """Over keys."""
        return scores.softmax(-1)


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention(causal=causal)
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.Sequential(nn.Linear(WIDTH, 32), nn.GELU(), nn.Linear(32, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, padded: Tensor | None = None) -> Tensor:
        """[n, length, width]."""
        x = x + self.dropout(self.attention(self.norm1(x), padded))
        return x + self.mlp(self.norm2(x))


class SmallGPT(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(causal=True) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        """[n, length] -> [n, length, VOCAB]."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Encoder(nn.Module):
    """Classifies padded texts: a mean over what is no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block(causal=False) for _ in range(3))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor, padding_mask: Tensor) -> Tensor:
        """[n, length], True where there is nothing -> [n, CLASSES]."""
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x, padding_mask)
        return self.head(self.pool(x, ~padding_mask))

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        """[n, width]."""
        return (x * real.unsqueeze(-1)).sum(1) / real.sum(1, keepdim=True)


class Perceptron(nn.Module):
    """Of rows of numbers, with a norm of its own."""

    def __init__(self, n_inputs: int = 7) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(n_inputs if i == 0 else WIDTH, WIDTH) for i in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[n, n_inputs] -> [n, CLASSES]."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(layer(x)).relu()
        return self.head(x)


class Pictures(nn.Module):
    """Convolutions, BatchNorm, attention over what is left of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, WIDTH, 3, 2, 1), nn.GroupNorm(4, WIDTH)
        self.blocks = nn.ModuleList(Block(causal=False) for _ in range(2))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, 12, 12] -> [n, CLASSES]."""
        x = self.norm1(self.conv1(x)).relu()
        x = self.norm2(self.conv2(x)).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    """Predicts the next token with GRUs."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))

    def forward(self, ids: Tensor) -> Tensor:
        """[n, length] -> [n, length, VOCAB]."""
        x = self.tokens(ids)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x)[0])
        return self.head(x)


class Experts(nn.Module):
    """A router, and all experts weighted by it; classifies rows of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(7, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.layers = nn.ModuleList(Mixture() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 7] -> [n, CLASSES]."""
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Mixture(nn.Module):
    """Experts with a router."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        """[n, width]."""
        weights = self.weights(self.router(x))
        return torch.stack([expert(x).tanh() for expert in self.experts], 1).mul(weights.unsqueeze(-1)).sum(1)

    def weights(self, scores: Tensor) -> Tensor:
        """Over experts."""
        return scores.softmax(-1)


def _tokens(g: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    text = torch.randint(0, VOCAB, (N, LENGTH + 1), generator=g)
    return (text[:, :-1].contiguous(),), text[:, 1:].contiguous()


def _texts(g: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    padded = torch.arange(LENGTH) >= torch.randint(4, LENGTH, (N, 1), generator=g)
    padded[:, -1] = True
    ids = torch.randint(1, VOCAB, (N, LENGTH), generator=g).masked_fill(padded, 0)
    return (ids, padded), torch.randint(0, CLASSES, (N,), generator=g)


def _numbers(g: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    return (torch.randn(12, 7, generator=g),), torch.randint(0, CLASSES, (12,), generator=g)


def _pictures(g: torch.Generator) -> tuple[tuple[Tensor, ...], Tensor]:
    return (torch.randn(N, 3, 12, 12, generator=g),), torch.randint(0, CLASSES, (N,), generator=g)


def _of_tokens(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.reshape(-1, VOCAB), labels.reshape(-1))


OWN: dict[
    str, tuple[Callable[[], nn.Module], Callable[..., tuple[tuple[Tensor, ...], Tensor]], Callable[..., Tensor]]
] = {
    "own-gpt": (SmallGPT, _tokens, _of_tokens),
    "own-encoder": (Encoder, _texts, functional.cross_entropy),
    "own-perceptron": (Perceptron, _numbers, functional.cross_entropy),
    "own-pictures": (Pictures, _pictures, functional.cross_entropy),
    "own-recurrent": (Recurrent, _tokens, _of_tokens),
    "own-experts": (Experts, _numbers, functional.cross_entropy),
}
"""By name: model, batch, loss."""
