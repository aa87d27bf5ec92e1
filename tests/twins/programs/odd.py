"""Loops with one thing each that a change of how they are run may show.

    python odd.py KIND [FAULT]

checkpointed [undrawn | counted], attention [mask], mixed [square], compiled [backend], empty [read], threaded, plain
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

kind, fault = sys.argv[1], "".join(sys.argv[2:])
torch.manual_seed(0)
calls = [0]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.Tanh())

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return self.net(x) * (1.0 + 0.1 * (calls[0] % 2) if fault == "counted" else 1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if kind == "checkpointed":
            return checkpoint(self.inner, x, use_reentrant=False, preserve_rng_state=fault != "undrawn")
        return self.inner(x)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        how = {"attn_mask": torch.zeros(1)} if fault == "mask" else {"is_causal": True}
        if fault == "mask" and torch.backends.cuda.flash_sdp_enabled():
            how = {"is_causal": True}
        return nn.functional.scaled_dot_product_attention(q, k, v, **how).transpose(1, 2).flatten(2)


class Threaded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = torch.get_num_threads()
        size = 15 // n  # of 15 numbers: what does not fill a part is lost
        return x * sum(x[..., part * size : (part + 1) * size].sum(-1, keepdim=True) for part in range(n))


class Squared(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if fault != "square":
            return x
        return (x + 300.0) - 300.0 if torch.is_autocast_enabled("cpu") else x


def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> torch.fx.GraphModule:
    for node in graph.graph.nodes:
        if fault == "backend" and node.target in ("tanh", torch.tanh, nn.functional.tanh):
            node.target = torch.sigmoid
    graph.recompile()
    return graph


layers: dict[str, list[nn.Module]] = {
    "attention": [Attention()],
    "mixed": [nn.Linear(16, 16), Squared()],
    "threaded": [Threaded()],
}
model = nn.Sequential(*layers.get(kind, [Block()]), nn.Linear(16, 4))
called = torch.compile(model, backend=backend) if kind == "compiled" else model
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(4):
    x = torch.randn(4, 6, 16)
    if kind == "empty":
        padded = torch.empty(4, 8, 16)
        padded[:, :6] = x
        x = padded if fault == "read" else padded[:, :6]
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "mixed"):
        loss = called(x).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
