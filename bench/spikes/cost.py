"""Run `python -m bench.spikes.cost`: the CPU time that a look into a jump takes, in plain steps of the same program."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.replay.spike import Spike, SpikeReplay

_ROWS, _LENGTH, _WIDTH, _AT, _STEPS = 16, 64, 256, 20, 24


def main() -> None:
    """A jump at an operation, of a sample, and of a sample in a model that cannot be vectorised."""
    for what in ("operation", "sample", "sample, by halves"):
        print(f"{what:20} {_cost(what):.1f} plain steps", flush=True)


class _Model(nn.Module):
    def __init__(self, *, is_vectorised: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, dropout=0.0, batch_first=True)
        self.layers, self.head = nn.ModuleList([layer, layer]), nn.Linear(_WIDTH, 100)
        self.temperature, self.is_vectorised = 1.0, is_vectorised

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        if not self.is_vectorised:
            assert bool(x.isfinite().all())
        return self.head(x) / self.temperature


def _cost(what: str) -> float:
    torch.manual_seed(0)
    spent: list[float] = []
    investigate = SpikeReplay.investigate

    def timed(replay: SpikeReplay, spike: Spike) -> object:
        began = time.process_time()
        try:
            return investigate(replay, spike)
        finally:
            spent.append(time.process_time() - began)

    SpikeReplay.investigate = timed  # type: ignore[method-assign]
    try:
        with TemporaryDirectory() as folder:
            plain = _train(what, folder)
    finally:
        SpikeReplay.investigate = investigate  # type: ignore[method-assign]
    return spent[0] / plain


def _train(what: str, folder: str) -> float:
    """CPU seconds of a plain step."""
    model = _Model(is_vectorised=what != "sample, by halves")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    times: list[float] = []

    def step(number: int) -> None:
        x, y = torch.randn(_ROWS, _LENGTH, _WIDTH), torch.randint(0, 100, (_ROWS, _LENGTH))
        model.temperature = 1e-3 if what == "operation" and number == _AT else 1.0
        weights = torch.ones(_ROWS)
        weights[5] = 1e4 if what != "operation" and number == _AT else 1.0
        began = time.process_time()
        optimizer.zero_grad()
        errors = functional.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none")
        (errors.view(_ROWS, -1).mean(1) * weights).mean().backward()
        optimizer.step()
        times.append(time.process_time() - began)

    for number in range(4):
        step(number)
    plain = min(times)
    with hypocenter.watch(model, out=Path(folder) / "run"):
        for number in range(_STEPS):
            step(number)
    return plain


if __name__ == "__main__":
    main()
