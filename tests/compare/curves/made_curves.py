"""Curves made up for tests: a falling loss, noise with a memory, and logs as the frameworks print them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from hypocenter.compare.curves.curve import Curve, Series


def falling(n: int) -> np.ndarray:
    """A loss of a language model without noise: fast at first, slow later."""
    t = np.arange(n)
    return 2.5 + 8 * np.exp(-t / (n / 20)) + np.exp(-t / (n / 2))


def noise(seed: int, n_pairs: int, n: int, memory: float, spread: float) -> np.ndarray:
    """AR(1) noise, one row per run, stationary from the first step."""
    random = np.random.default_rng(seed).normal(size=(n_pairs, n)) * spread
    random[:, 1:] *= np.sqrt(1 - memory**2)
    for t in range(1, n):
        random[:, t] += memory * random[:, t - 1]
    return random


def curve(values: object, *, kind: str = "megatron", every: int = 1, **others: object) -> Curve:
    """A curve with this loss, and with other series by name."""
    series = {}
    for name, one in {"loss": values, **others}.items():
        array = np.asarray(one, dtype=np.float64)
        series[name] = Series(name=name, steps=np.arange(len(array)) * every, values=array)
    return Curve(source="made up", kind=kind, series=series, counts_from=1)


def megatron_lines(losses: np.ndarray, *, lr: float = 1e-4, first: int = 1) -> str:
    """A log as Megatron-LM prints it since 2024."""
    return "".join(
        f" [2026-01-16 07:32:24.000000] iteration {first + i:8d}/{len(losses):8d} | consumed samples: {8 * i:12d} | "
        f"elapsed time per iteration (ms): 15800.0 | throughput per GPU (TFLOP/s/GPU): 490.0 | learning rate: {lr:.6E} "
        f"| global batch size:  2048 | lm loss: {loss:.6E} | loss scale: 1.0 | grad norm: 2.870 | num zeros: 3.0 | "
        f"params norm: 8660.607 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
        for i, loss in enumerate(losses)
    )


def write_losses(path: Path, losses: np.ndarray) -> Path:
    """A Megatron log on disk."""
    path.write_text("noise before\n" + megatron_lines(losses), encoding="utf-8")
    return path


def varint(value: int) -> bytes:
    """A protocol-buffer varint."""
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def message(number: int, payload: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def double(number: int, value: float) -> bytes:
    """A double field."""
    return varint(number << 3 | 1) + struct.pack("<d", value)
