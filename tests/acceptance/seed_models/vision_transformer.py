"""A fine-tuned ViT with cosine attention whose blocks.1.attn has tiny keys: 1 / |k| leaves float16 in backward.

The keys' length does not matter to the forward, so nothing holds it up against weight decay; the gradient of
`k / |k|` grows with its inverse. Fine-tuning with layer-wise learning rates leaves such a layer as it is.
"""

import torch
from torch import nn
from training import main

PATCH, SIDE, WIDTH, HEADS, CLASSES = 4, 16, 32, 4, 4
KEY_STD = 2e-6  # of blocks.1.attn.key after pre-training


class CosineAttention(nn.Module):
    """Queries and keys on the unit sphere, as in Swin v2."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width)"""
        q, k, v = (p(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.query, self.key, self.value))
        k = k / k.norm(dim=-1, keepdim=True)
        q = q / q.norm(dim=-1, keepdim=True)
        weights = torch.softmax(10 * q @ k.transpose(-2, -1), dim=-1)
        return self.proj((weights @ v).transpose(1, 2).flatten(-2))


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = CosineAttention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width)"""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Four blocks over 4 × 4 patches."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Linear(PATCH * PATCH, WIDTH)
        self.pos_embed = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CLASSES)
        nn.init.normal_(self.blocks[1].attn.key.weight, std=KEY_STD)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, side, side)"""
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        x = self.patch_embed(patches) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=1))


PATTERNS = torch.randn(CLASSES, SIDE, SIDE, generator=torch.Generator().manual_seed(2))


def batch(data: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """One of four patterns in noise."""
    y = torch.randint(CLASSES, (16,), generator=data)
    return 0.3 * PATTERNS[y] + torch.randn(16, SIDE, SIDE, generator=data), y


def groups(model: nn.Module) -> list[dict[str, object]]:
    """Layer-wise learning rates: next to nothing for the keys of the early blocks."""
    early = [p for n, p in model.named_parameters() if n.startswith(("blocks.0.attn.key", "blocks.1.attn.key"))]
    rest = [p for p in model.parameters() if all(p is not e for e in early)]
    return [{"params": rest, "lr": 5e-4}, {"params": early, "lr": 1e-9}]


if __name__ == "__main__":
    main(VisionTransformer, batch, nn.functional.cross_entropy, groups)
