"""Fakes for the taps: a reducer that computes at once, in float64, and a warning list."""

from __future__ import annotations

import pytest
import torch

from hypocenter.nouns import Summary
from hypocenter.tap.clock import Clock


class FakeReducer:
    """What TorchReducer promises, with nothing clever in it. `added` counts the tensors that were reduced."""

    def __init__(self) -> None:
        self.added = 0
        self._summaries: list[Summary] = []

    def add(self, tensor: torch.Tensor) -> int:
        assert not torch.is_grad_enabled()
        self.added += 1
        self._summaries.append(self.summary(tensor))
        return len(self._summaries) - 1

    def drain(self) -> list[Summary]:
        summaries, self._summaries = self._summaries, []
        return summaries

    @staticmethod
    def summary(tensor: torch.Tensor) -> Summary:
        if tensor.is_meta:
            return Summary(n=tensor.numel())
        values = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
        values = torch.view_as_real(values.resolve_conj()) if values.is_complex() else values
        values = values.to(torch.float64).flatten()
        finite = values[torch.isfinite(values)]
        return Summary(
            n=values.numel(),
            n_nan=int(values.isnan().sum()),
            absmax=float(finite.abs().max()) if finite.numel() else 0.0,
            sum=float(finite.sum()),
            sumsq=float((finite * finite).sum()),
        )


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def reducer() -> FakeReducer:
    return FakeReducer()


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.recording = True
    return clock


@pytest.fixture
def warnings_given() -> list[str]:
    return []
