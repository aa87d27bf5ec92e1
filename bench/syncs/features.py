"""What a training step may have: each a step of the same small model on the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

WIDTH = 16


@dataclass(slots=True, kw_only=True)
class Training:
    """A model under way. `step` is one training step; `at_backward` is called once its gradients are there."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], Tensor]
    update: Callable[[], None]
    scale: Callable[[Tensor], Tensor] = field(default=lambda loss: loss)
    n_microbatches: int = 1

    def step(self, at_backward: Callable[[], None]) -> None:
        """Forward, backward, update."""
        self.optimizer.zero_grad()
        for _ in range(self.n_microbatches):
            self.scale(self.loss()).backward()
        at_backward()
        self.update()


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


def _training(*, dtype: torch.dtype = torch.float32, lr: float | Tensor = 1e-3, **options: Any) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(_Block(), _Block(), _Block(), nn.Linear(WIDTH, 4)).to("npu", dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=True, **options)

    def loss() -> Tensor:
        x = torch.randn(8, WIDTH, device="npu", dtype=dtype)
        y = torch.zeros(8, device="npu", dtype=torch.int64)
        return nn.functional.cross_entropy(made.model(x).float(), y)

    made = Training(model=model, optimizer=optimizer, loss=loss, update=optimizer.step)
    return made


def plain() -> Training:
    return _training()


def accumulation() -> Training:
    made = _training()
    made.n_microbatches = 4
    return made


def clipping() -> Training:
    made = _training()

    def update() -> None:
        nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        made.optimizer.step()

    made.update = update
    return made


def scaler(*, is_clipped: bool = False) -> Training:
    made = _training()
    own = torch.amp.GradScaler("npu")

    def update() -> None:
        if is_clipped:
            own.unscale_(made.optimizer)
            nn.utils.clip_grad_norm_(made.model.parameters(), 1.0)
        own.step(made.optimizer)
        own.update()

    made.update, made.scale = update, own.scale
    return made


def scaler_and_clipping() -> Training:
    return scaler(is_clipped=True)


def bfloat16_weights() -> Training:
    return _training(dtype=torch.bfloat16)


def rate_on_device() -> Training:
    made = _training(lr=torch.tensor(1e-3, device="npu"), capturable=True)
    schedule = torch.optim.lr_scheduler.ConstantLR(made.optimizer)

    def update() -> None:
        made.optimizer.step()
        schedule.step()

    made.update = update
    return made


def changing_shapes() -> Training:
    made, n = _training(), [8]

    def loss() -> Tensor:
        n[0] += 1
        x = torch.randn(n[0], WIDTH, device="npu")
        return made.model(x).square().mean()

    made.loss = loss
    return made


FEATURES: dict[str, Callable[[], Training]] = {
    "plain": plain, "accumulation": accumulation, "changing shapes": changing_shapes, "clipping": clipping,
    "GradScaler": scaler, "GradScaler, clipping": scaler_and_clipping, "bfloat16 weights": bfloat16_weights,
    "rate on device": rate_on_device,
}  # fmt: skip
