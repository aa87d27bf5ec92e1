"""How the seed models are trained: float16 autocast on the CPU with a real GradScaler, or float32; islands or not."""

import argparse
import math
from collections.abc import Callable

import torch
from torch import nn

Batch = tuple[torch.Tensor, torch.Tensor]


def main(
    make: Callable[[], nn.Module],
    batch: Callable[[torch.Generator], Batch],
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    groups: Callable[[nn.Module], list[dict[str, object]]],
    init_scale: float = 65536.0,
) -> None:
    """Train and print `step N loss X scale S` at each step. Same seed, same data, same weights in every variant."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", choices=("fp16", "fp32"), default="fp16")
    parser.add_argument("--island", action="append", default=[], help="a module to run in float32; may be repeated")
    parser.add_argument("--keep-float32", action="store_true", help="do not cast the islands' results back")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = make()
    if args.island:
        import hypocenter

        hypocenter.island(model, args.island, **({"cast_back": False} if args.keep_float32 else {}))
    optimizer = torch.optim.AdamW(groups(model))
    is_low = args.precision == "fp16"
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, enabled=is_low)
    data = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        x, y = batch(data)
        with torch.autocast("cpu", torch.float16, enabled=is_low):
            loss = criterion(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scale = scaler.get_scale() if is_low else math.nan
        print(f"step {step} loss {loss.item():.6f} scale {scale:g}")
