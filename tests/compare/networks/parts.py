"""What the three networks share: root mean square norm, rotary angles, attention proper, and the loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.float()
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)).to(hidden_states.dtype)


def angles(n: int, head: int, theta: float) -> torch.Tensor:
    frequency = 1.0 / theta ** (torch.arange(0, head, 2).float() / head)
    angle = torch.outer(torch.arange(n).float(), frequency)
    return torch.cat((angle, angle), dim=-1)


def rotated(x_bnsd: torch.Tensor, angle: torch.Tensor) -> torch.Tensor:
    return turned(x_bnsd, angle.cos(), angle.sin())


def turned(x_bnsd: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x_bnsd.shape[-1] // 2
    return x_bnsd * cos + torch.cat((-x_bnsd[..., half:], x_bnsd[..., :half]), dim=-1) * sin


def attended(q_bnsd: torch.Tensor, k_bnsd: torch.Tensor, v_bnsd: torch.Tensor) -> torch.Tensor:
    n_each = q_bnsd.shape[1] // k_bnsd.shape[1]
    k, v = (x.repeat_interleave(n_each, dim=1) for x in (k_bnsd, v_bnsd))
    return F.scaled_dot_product_attention(q_bnsd, k, v, is_causal=True)


def next_token_loss(logits_bsv: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits_bsv[:, :-1].reshape(-1, logits_bsv.shape[-1]).float(), labels[:, 1:].reshape(-1))


def interleaved(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, groups: int) -> torch.Tensor:
    """Fuse the rows of q, k and v group by group."""
    parts = [x.reshape(groups, -1, *x.shape[1:]) for x in (q, k, v)]
    return torch.cat(parts, dim=1).reshape(-1, *q.shape[1:])
