"""Linear attention with the unscaled key sum: over 2,048 tokens it leaves float16, and the normalizer becomes NaN."""

import torch
from torch import nn
from training import main

LENGTH, WIDTH, HEADS, CLASSES = 2048, 16, 2, 4


class LinearAttention(nn.Module):
    """The attention itself, without parameters."""

    eps = 1e-6

    def forward(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """(batch, length, heads, width) each."""
        Q, K = nn.functional.elu(queries) + 1, nn.functional.elu(keys) + 1
        v_length = values.size(1)
        values = values / v_length  # prevent fp16 overflow
        KV = torch.einsum("nshd,nshv->nhdv", K, values)
        Z = 1 / (torch.einsum("nlhd,nhd->nlh", Q, K.sum(dim=1)) + self.eps)
        return torch.einsum("nlhd,nhdv,nlh->nlhv", Q, KV, Z) * v_length


class AttentionLayer(nn.Module):
    """Projections around the attention."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.inner_attention = LinearAttention()
        self.out = nn.Linear(WIDTH, WIDTH)
        for projection in (self.query, self.key):
            nn.init.normal_(projection.weight, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width)"""
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)) for p in (self.query, self.key, self.value))
        return self.out(self.inner_attention(q, k, v).flatten(-2))


class Encoder(nn.Module):
    """One layer: attention, then a feed-forward."""

    def __init__(self, std: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = AttentionLayer(std)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, width)"""
        x = x + self.attention(self.norm1(x))
        return x + self.linear2(nn.functional.gelu(self.linear1(self.norm2(x))))


class Classifier(nn.Module):
    """Two layers and a head on the mean token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList([Encoder(std=0.25), Encoder(std=10.0)])  # the second without 1 / sqrt(width)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, length, 8)"""
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(dim=1))


CENTERS = torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(2))


def batch(data: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens around the centre of their document's class; three labels in ten are any."""
    y = torch.randint(CLASSES, (4,), generator=data)
    x = 0.3 * CENTERS[y][:, None] + torch.randn(4, LENGTH, 8, generator=data)
    is_any = torch.rand(4, generator=data) < 0.3
    return x, torch.where(is_any, torch.randint(CLASSES, (4,), generator=data), y)


def groups(model: nn.Module) -> list[dict[str, object]]:
    """All alike."""
    return [{"params": model.parameters(), "lr": 5e-4}]


if __name__ == "__main__":
    main(Classifier, batch, nn.functional.cross_entropy, groups, init_scale=256.0)
