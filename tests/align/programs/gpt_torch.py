"""The baseline of two frameworks: nanoGPT, small, with a head of its own. Its weights are read from a file, or written.

python gpt_torch.py --save init.safetensors          # draw weights and write them
python gpt_torch.py --weights init.safetensors       # train from them
python gpt_torch.py --weights init.safetensors --logits logits.npy
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from text_arrays import VOCABULARY, batches
from torch import nn

WIDTH, N_HEADS, N_LAYERS, LENGTH, SIZE = 32, 4, 2, 32, 8
WARM_STEPS, DECAY_STEPS = 5, 60


class CausalSelfAttention(nn.Module):
    """All three projections in one."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.resid_dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = (part.view(n, t, N_HEADS, -1).transpose(1, 2) for part in self.c_attn(x).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(n, t, d)))


class MLP(nn.Module):
    """GELU by the error function between two linears."""

    def __init__(self) -> None:
        super().__init__()
        self.c_fc, self.gelu, self.c_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """Attention and feed-forward network, each behind a norm and beside a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), CausalSelfAttention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Gives logits and loss."""

    def __init__(self) -> None:
        super().__init__()
        parts = {
            "wte": nn.Embedding(VOCABULARY, WIDTH), "wpe": nn.Embedding(LENGTH, WIDTH), "drop": nn.Dropout(0.0),
            "h": nn.ModuleList(Block() for _ in range(N_LAYERS)), "ln_f": nn.LayerNorm(WIDTH),
        }  # fmt: skip
        self.transformer = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith(("wte.weight", "wpe.weight")):
                nn.init.normal_(parameter, std=0.02)
            elif "ln_" in name:  # as after some training: a norm whose gain is 1 hides mistakes
                nn.init.normal_(parameter, mean=float(name.endswith("weight")), std=0.1)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self.transformer
        x = parts["drop"](parts["wte"](ids) + parts["wpe"](torch.arange(ids.shape[1])))
        for block in parts["h"]:
            x = block(x)
        logits = self.lm_head(parts["ln_f"](x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def rate(step: int) -> float:
    """Warm-up, then half a cosine down to a tenth."""
    if step < WARM_STEPS:
        return (step + 1) / WARM_STEPS
    return 0.55 + 0.45 * math.cos(math.pi * min((step - WARM_STEPS) / DECAY_STEPS, 1.0))


def train(model: GPT, given: argparse.Namespace) -> None:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for step, (ids, targets) in enumerate(batches(given.tokens, given.steps, size=SIZE, length=LENGTH)):
        _, loss = model(torch.from_numpy(ids).long(), torch.from_numpy(targets).long())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.6f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--tokens", default="")
    parser.add_argument("--weights", default="")
    parser.add_argument("--save", default="", help="write the initial weights here and end")
    parser.add_argument("--logits", default="", help="write those of the first batch here and end")
    given = parser.parse_args()
    torch.manual_seed(0)
    model = GPT()
    if given.weights:
        model.load_state_dict(load_file(given.weights))
    if given.save:
        save_file(model.state_dict(), given.save)
    elif given.logits:
        ids, targets = next(batches(given.tokens, 1, size=SIZE, length=LENGTH))
        with torch.no_grad():
            np.save(given.logits, model(torch.from_numpy(ids).long(), torch.from_numpy(targets).long())[0].numpy())
    else:
        train(model, given)


if __name__ == "__main__":
    main()
