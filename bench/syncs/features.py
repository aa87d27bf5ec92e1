"""What a training step may have: each a step of the same small model on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    n_waits: int = 1  # that a step may cost: one before each time that parameters move

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


class FusedSGD(torch.optim.SGD):
    """As torch's fused optimizers: the scaler gives it scale and verdict, and it skips without asking the host."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None) -> None:
        """One update, or none."""
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for group in self.param_groups:
            held = [p for p in group["params"] if p.grad is not None]
            updates = [p.grad if scale is None else p.grad / scale for p in held]
            if found is not None:
                updates = [torch.where(found != 0, torch.zeros_like(update), update) for update in updates]
            with torch.no_grad():
                torch._foreach_add_(held, updates, alpha=-group["lr"])


def _adamw(parameters: Iterator[nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **{"lr": 1e-3, "foreach": True, **options})


def _training(
    make: Callable[..., torch.optim.Optimizer] = _adamw, *, dtype: torch.dtype = torch.float32, **options: Any
) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(_Block(), _Block(), _Block(), nn.Linear(WIDTH, 4)).to("npu", dtype)
    optimizer = make(model.parameters(), **options)

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


def scaler(made: Training | None = None, *, is_clipped: bool = False) -> Training:
    made = made or _training()
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


def scaler_clipping_accumulation() -> Training:
    return scaler(accumulation(), is_clipped=True)


def fused() -> Training:
    return scaler(_training(FusedSGD, lr=1e-3))


def fused_and_clipping() -> Training:
    return scaler(_training(FusedSGD, lr=1e-3), is_clipped=True)


def clipping_values() -> Training:
    made = scaler()
    step = made.update

    def update() -> None:
        nn.utils.clip_grad_value_(made.model.parameters(), 1.0)
        step()

    made.update = update
    return made


def clipping_by_hand() -> Training:
    made = _training()

    def update() -> None:
        held = [p.grad for p in made.model.parameters() if p.grad is not None]
        total = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(held)))
        torch._foreach_mul_(held, (1.0 / (total + 1e-6)).clamp(max=1.0))
        made.optimizer.step()

    made.update = update
    return made


def clipping_twice() -> Training:
    """Each half of the model by itself, whose gradients one optimizer uses."""
    made = _training()
    own = torch.amp.GradScaler("npu")

    def update() -> None:
        own.unscale_(made.optimizer)
        blocks = list(made.model.children())
        for half in (blocks[:2], blocks[2:]):
            nn.utils.clip_grad_norm_((p for block in half for p in block.parameters()), 1.0)
        own.step(made.optimizer)
        own.update()

    made.update, made.scale = update, own.scale
    return made


def bfloat16_autocast() -> Training:
    made = clipping()
    loss = made.loss

    def in_autocast() -> Tensor:
        with torch.autocast("npu", torch.bfloat16):
            return loss()

    made.loss = in_autocast
    return made


def two_optimizers(*, is_scaled: bool = False) -> Training:
    """Of two halves of the model, which are clipped one after the other."""
    made = _training()
    parameters = list(made.model.parameters())
    made.optimizer = _adamw(iter(parameters[::2]))
    second = _adamw(iter(parameters[1::2]))
    own = torch.amp.GradScaler("npu", enabled=is_scaled)

    def update() -> None:
        for optimizer in (made.optimizer, second):
            own.unscale_(optimizer)
            nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)
        for optimizer in (made.optimizer, second):
            own.step(optimizer)
        own.update()
        second.zero_grad()

    made.update, made.scale, made.n_waits = update, own.scale, 2
    return made


def two_optimizers_scaled() -> Training:
    return two_optimizers(is_scaled=True)


def in_backward() -> Training:
    """Each parameter is updated as soon as its gradient is there: the first and the rest."""
    made = _training()
    own = {p: _adamw(iter([p])) for p in made.model.parameters()}

    def step(parameter: Tensor) -> None:
        own[parameter].step()  # type: ignore[index]
        own[parameter].zero_grad()  # type: ignore[index]

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(step)
    made.optimizer, made.update, made.n_waits = next(iter(own.values())), lambda: None, 2
    return made


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
    "clipping by hand": clipping_by_hand, "clipping values": clipping_values,
    "GradScaler": scaler, "GradScaler, clipping": scaler_and_clipping,
    "both, accumulation": scaler_clipping_accumulation, "both, clipped twice": clipping_twice,
    "GradScaler, fused": fused, "both, fused": fused_and_clipping,
    "two optimizers": two_optimizers, "two optimizers, both": two_optimizers_scaled,
    "in backward": in_backward,
    "bfloat16 weights": bfloat16_weights, "bfloat16 autocast": bfloat16_autocast, "rate on device": rate_on_device,
}  # fmt: skip
