"""Trains three small blocks on the device "npu": dropout, autocast to float16, a loss scaler, clipping, AdamW.

At step `--overflow-at` block 1 multiplies what goes into its second layer with 1e7; at `--saturate-at` the device says
that an operator overflowed, and no value does. Prints each loss and the sum of the weights, to the bit.
"""

from __future__ import annotations

import argparse

import npu_backend

npu_backend.begin()

import torch  # noqa: E402 (as after `import torch_npu`)
import torch_npu_scaler  # noqa: E402
from torch import Tensor, nn  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.act, self.drop, self.norm = nn.GELU(), nn.Dropout(0.2), nn.LayerNorm(16)

    def forward(self, x: Tensor, gain: float) -> Tensor:
        wide = self.drop(self.act(self.up(x)))
        wide = wide * gain
        if gain > 1e20:
            wide = wide * wide
        return self.norm(x + self.down(wide))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block() for _ in range(3)]), nn.Linear(16, 4)

    def forward(self, x: Tensor, gain: float) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(x, gain if number == 1 else 1.0)
        return self.head(x)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--overflow-at", type=int, default=-1)
    options.add_argument("--scaler", choices=["torch", "torch_npu", "static"], default="torch")
    options.add_argument("--saturate-at", type=int, default=-1, help="an operator overflows, and no value is infinite")
    options.add_argument("--float32", action="store_true", help="no autocast; what overflows is 1e25 squared")
    options.add_argument("--steps", type=int, default=4)
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net().to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    makers = {
        "torch": lambda: torch.amp.GradScaler("npu"),
        "torch_npu": torch_npu_scaler.GradScaler,
        "static": lambda: torch_npu_scaler.GradScaler(1024.0, dynamic=False),
    }
    scaler = makers[given.scaler]()
    for step in range(given.steps):
        x, y = torch.randn(4, 16, device="npu"), torch.randint(0, 4, (4,), device="npu")
        gain = (1e25 if given.float32 else 1e7) if step == given.overflow_at else 1.0
        with torch.autocast("npu", dtype=torch.float16, enabled=not given.float32):
            loss = nn.functional.cross_entropy(model(x, gain), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.status_register = step == given.saturate_at
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(f"loss {loss.item().hex()}", flush=True)
    print("weights", sum(float(p.detach().double().cpu().abs().sum()) for p in model.parameters()).hex())


if __name__ == "__main__":
    main()
