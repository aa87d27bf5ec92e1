"""The program that both tools record: a GPT in plain torch, trained deterministically; one thing may be planted.

`python -m bench.compare.peer_gpt PLANTED TOOL OUT WIDTH STEPS`.
PLANTED: none, eps (LayerNorm eps of blocks.2.ln2 is 1e-3), bf16 (the
MLP of blocks.2 computes in bfloat16), decay (no weight decay on biases). TOOL: hypocenter-sketch, hypocenter-tensors,
msprobe-L0, msprobe-mix (both task tensor), nothing. Prints {"seconds", "loss"} of the steps. Runs without transformers,
so that any Python with torch and one of the tools will do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY, N_LAYERS, N_HEADS, N_ROWS, N_TOKENS = 1000, 4, 4, 8, 128


class Mlp(nn.Module):
    """Feed-forward network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.act(self.fc1(x)))


class ShortMlp(Mlp):
    """The same in bfloat16, between float32 on both sides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16()).float()


class Block(nn.Module):
    """Attention and feed-forward network, both with residual."""

    def __init__(self, width: int, eps: float, short: bool) -> None:
        super().__init__()
        self.ln1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln2 = nn.LayerNorm(width, eps=eps)
        self.mlp = ShortMlp(width) if short else Mlp(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(n, t, 3, N_HEADS, d // N_HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, t, d))
        return x + self.mlp(self.ln2(x))


class Gpt(nn.Module):
    """Embeddings, blocks, norm, head."""

    def __init__(self, width: int, planted: str) -> None:
        super().__init__()
        self.emb, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(N_TOKENS, width)
        self.blocks = nn.ModuleList(
            Block(width, 1e-3 if (planted, i) == ("eps", 2) else 1e-5, (planted, i) == ("bf16", 2))
            for i in range(N_LAYERS)
        )
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


@contextmanager
def _nothing(model: nn.Module, optimizer: torch.optim.Optimizer, out: str) -> Iterator[Callable[..., float]]:
    yield lambda step: step()


def _hypocenter(level: str) -> Callable[..., object]:
    @contextmanager
    def attach(model: nn.Module, optimizer: torch.optim.Optimizer, out: str) -> Iterator[Callable[..., float]]:
        import hypocenter

        options = {"level": level, "sketch": True, "param_schedule": "every=1", "replay": False}
        options["calibrate"] = "every=1" if os.environ.get("PEER_CALIBRATE") else "never"
        with hypocenter.watch(model, optimizer, out=out, **options):
            yield lambda step: step()

    return attach


def _msprobe(level: str) -> Callable[..., object]:
    @contextmanager
    def attach(model: nn.Module, optimizer: torch.optim.Optimizer, out: str) -> Iterator[Callable[..., float]]:
        from msprobe.pytorch import PrecisionDebugger

        debugger = PrecisionDebugger(task="tensor", level=level, dump_path=out)

        def watched(step: Callable[[], float]) -> float:
            debugger.start(model=model)
            loss = step()
            debugger.stop()
            debugger.step()
            return loss

        yield watched

    return attach


TOOLS = {
    "nothing": _nothing, "hypocenter-sketch": _hypocenter("modules"), "hypocenter-tensors": _hypocenter("tensors"),
    "msprobe-L0": _msprobe("L0"), "msprobe-mix": _msprobe("mix"),
}  # fmt: skip


def main(planted: str, tool: str, out: str, width: int, n_steps: int) -> None:
    """Train and record."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Gpt(width, planted)
    if planted == "bf16":
        model.blocks[2].mlp.to(torch.bfloat16)
    with torch.no_grad():  # biases that are zero cannot decay
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.1)
    biases = [p for name, p in model.named_parameters() if name.endswith("bias")]
    others = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others}, {"params": biases, "weight_decay": 0.0 if planted == "decay" else 0.1}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    tokens = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, VOCABULARY, (N_ROWS, N_TOKENS + 1), generator=tokens) for _ in range(n_steps)]
    loss = 0.0
    with TOOLS[tool](model, optimizer, out) as watched:
        began = time.perf_counter()
        for ids in batches:

            def step(ids: torch.Tensor = ids) -> float:
                found = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
                found.backward()
                optimizer.step()
                optimizer.zero_grad()
                return found.item()

            loss = watched(step)
        seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "loss": loss}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
