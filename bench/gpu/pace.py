"""Trains GPT-2 of 124 M parameters, or a chain of 1,000 parameters, on a device, and prints what a step takes.

`python bench/gpu/pace.py gpt2|gpt2-compiled|chain N [--profile]`: milliseconds of the last half of N steps, each from
an idle device to an idle device, and the steps that took more than twice the median; with --profile, what of ours takes
most of the thread's time in N more, usual and slow ones apart.
"""

from __future__ import annotations

import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("programs")))

import torch
from common import GPT, D, lm_loss
from torch import nn

SHOWN = 8


class Residual(nn.Linear):
    """Through 500 plain layers no gradient comes back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.05 * super().forward(x)


def main() -> None:
    """Train, and tell."""
    kind, n = sys.argv[1], int(sys.argv[2])
    is_gpt2 = kind.startswith("gpt2")
    if is_gpt2:
        model = GPT(v=50304, w=768, n=12, h=12, T=1024).to(D)
        batch = torch.randint(0, 50304, (8, 1024), device=D)
    else:
        model = nn.Sequential(*[Residual(64, 64) for _ in range(500)]).to(D)
        batch = torch.randn(32, 64, device=D)
    called = torch.compile(model) if "compiled" in kind else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> float:
        _wait()
        began = time.perf_counter()
        with torch.autocast(D, torch.bfloat16, enabled=is_gpt2):
            out = called(batch)
            loss = lm_loss(out, batch) if is_gpt2 else out.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        _wait()
        return 1000 * (time.perf_counter() - began)

    taken = [step() for _ in range(n)][n // 2 :]
    usual = statistics.median(taken)
    print(f"step_ms {usual:.2f}", flush=True)
    print(f"mean_ms {statistics.fmean(taken):.2f}", flush=True)
    for number, ms in enumerate(taken, n // 2):
        if ms > 2 * usual:
            print(f"slow {number} {ms:.0f} ms", flush=True)
    if D != "cpu":
        print(f"peak_gib {torch.cuda.max_memory_allocated() / 2**30:.2f}", flush=True)
    if "--profile" in sys.argv:
        _profile(step, n, usual)


def _profile(step: Callable[[], float], n: int, usual: float) -> None:
    """Of each step by itself, as what is done seldom is not to be spread over the others."""
    by_kind: dict[bool, list[cProfile.Profile]] = {False: [], True: []}
    for number in range(n):
        profile = cProfile.Profile()
        profile.enable()
        ms = step()
        profile.disable()
        is_slow = ms > 3 * usual
        by_kind[is_slow].append(profile)
        if is_slow:
            print(f"slow {number} of the profiled {ms:.0f} ms", flush=True)
    for is_slow, profiles in by_kind.items():
        if profiles:
            print(f"{len(profiles)} {'slow' if is_slow else 'usual'} steps", flush=True)
            _tell(pstats.Stats(*profiles), len(profiles), 4 * SHOWN if is_slow else SHOWN)


def _wait() -> None:
    if D != "cpu":
        torch.accelerator.synchronize()


def _tell(stats: pstats.Stats, n: int, shown: int) -> None:
    rows = [(key, value) for key, value in stats.stats.items() if "hypocenter" in key[0]]  # type: ignore[attr-defined]
    for (path, line, name), (_, n_calls, _, cumulative, _) in sorted(rows, key=lambda row: -row[1][3])[:shown]:
        where = f"{path.partition('hypocenter/')[2]}:{line}:{name}"
        print(f"where {where} {1000 * cumulative / n:.2f} ms, {n_calls / n:.0f} calls", flush=True)


if __name__ == "__main__":
    main()
