"""Trains on the device "npu" with its steps, or a part of them, captured as a graph, and prints each loss to the bit.

`whole`: forward, backward and update are one graph. `part`: the forward of a block is a graph, as graphed callables
have it. At replay `--nan-at` the batch holds a NaN.
"""

from __future__ import annotations

import argparse
import math

import npu_backend

npu = npu_backend.begin()

import torch  # noqa: E402 (as after `import torch_npu`)
from torch import nn  # noqa: E402


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("what", choices=["whole", "part", "functional"])
    options.add_argument("--nan-at", type=int, default=-1)
    options.add_argument("--stuck", action="store_true", help="the device does nothing more after the last replay")
    given = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 2)).to("npu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
    x = torch.ones(3, 4, device="npu")

    def compute() -> torch.Tensor:
        if given.what == "functional":
            first, last = model[0], model[2]
            hidden = nn.functional.dropout(x @ first.weight.t() + first.bias, 0.2)
            return (hidden @ last.weight.t() + last.bias).square().mean()
        return model(x).square().mean()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=False)
        loss = compute()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    losses = []
    for number in range(3):
        x.fill_(float(number))
        losses.append(step().item())
    graph = npu.NPUGraph()
    if given.what == "part":
        with npu.graph(graph), torch.no_grad():
            made = model(x)
    else:
        with npu.graph(graph):
            loss = step()
    for number in range(6):
        x.fill_(math.nan if number == given.nan_at else float(number))
        graph.replay()
        if given.what == "part":
            made.sum().item()
            loss = step()
        losses.append(loss.item())
    for each in losses:
        print(f"loss {each.hex()}")
    print("weights", sum(float(p.detach().double().cpu().abs().sum()) for p in model.parameters()).hex())
    if given.stuck:
        graph.replay()
        torch.ops.hypocenter_test_npu.never_ready(True)


if __name__ == "__main__":
    main()
