"""Gradients of replays, brought to what the optimizer was given: summed over micro-batches, unscaled, clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from hypocenter.config import Config
from hypocenter.nouns import Reading
from hypocenter.session.levels import UntracedReducer
from hypocenter.tap.gradients import local
from hypocenter.tap.names import NameMap
from hypocenter.tap.sites import is_wanted

MIN_COSINE = 0.999  # between a parameter's gradient and its replay's: else something else was added to it


class Gradients:
    """Adds up the gradients of one sample after the other. The first one is without noise: `fit` compares with it.

    Whatever the program did to a gradient after backward (mean over micro-batches, loss scale, clipping) is taken to
    be one factor per parameter. Where it was something else, the parameter is left out.
    """

    def __init__(self, names: NameMap, config: Config, named: Sequence[tuple[str, Tensor]]) -> None:
        self._names, self._config = names, config
        self.parameters: list[Tensor] = [p for _, p in named]
        self._sums: list[Tensor | None] = [None] * len(named)
        self._factors: dict[int, float] = {}  # by position
        self._base_square = 0.0
        self._is_whole = False

    def add(self, grads: Sequence[Tensor | None]) -> None:
        """Of one micro-batch."""
        with torch.no_grad():
            for index, grad in enumerate(grads):
                values = local(grad) if grad is not None else None
                if values is None:
                    continue
                known = self._sums[index]
                self._sums[index] = values.clone() if known is None else known.add_(values)

    def fit(self) -> int:
        """The sums so far are those without noise: find the factors, forget the sums. Returns how many do not fit."""
        n_left_out = 0
        for index, parameter in enumerate(self.parameters):
            given, base = gradient_of(parameter), self._sums[index]
            if given is None or base is None or given.shape != base.shape:
                n_left_out += given is not None
                continue
            a, b = given.double().reshape(-1), base.double().reshape(-1)
            dot, aa, bb = (float(x) for x in (torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)))
            self._base_square += bb
            if bb == 0.0 and aa == 0.0:
                continue
            if aa == 0.0 or bb == 0.0 or dot < MIN_COSINE * (aa * bb) ** 0.5:
                n_left_out += 1
                continue
            factor = dot / bb
            self._factors[index] = 1.0 if torch.equal(given, base) else factor
        self._is_whole = n_left_out == 0
        self.forget()
        return n_left_out

    def forget(self) -> None:
        """Before the next sample."""
        self._sums = [None] * len(self.parameters)

    def scaled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(parameter, gradient as its optimizer would have been given it) of those that fit."""
        for index, factor in self._factors.items():
            total = self._sums[index]
            if total is not None:
                is_short = total.dtype.itemsize < 4 and factor != 1.0  # another rounding would be noise of ours
                yield self.parameters[index], (total.float() if is_short else total) * factor

    @property
    def norm_ratio(self) -> float | None:
        """Norm over all parameters, over that without noise; None when a part of it is not known."""
        if not self._is_whole or self._base_square == 0.0:
            return None
        square = sum(float(torch.linalg.vector_norm(s, dtype=torch.float64)) ** 2 for s in self._sums if s is not None)
        return (square / self._base_square) ** 0.5

    def rows(self, step: int, microbatch: int, next_order: Callable[[], int]) -> list[Reading]:
        """As `parameter_readings` gives those of the run."""
        return self.readings("grad", "grad", self.scaled(), step, microbatch, next_order)

    def readings(
        self, phase: Any, port: str, values: Iterable[tuple[Tensor, Tensor]], step: int, microbatch: int,
        next_order: Callable[[], int],
    ) -> list[Reading]:  # fmt: skip
        """Rows about (parameter, value); the values are taken one after the other, and not kept."""
        reducer, names = UntracedReducer(self._config), self._names.param_names
        with torch.no_grad():
            tickets = [(p, reducer.add(value)) for p, value in values if is_wanted(names(p), self._config)]
        summaries = reducer.drain()
        return [
            Reading(
                step=step, microbatch=microbatch, phase=phase, site=names(p)[0], port=port, order=next_order(),
                dtype=str(p.dtype).removeprefix("torch."), shape=tuple(p.shape), summary=summaries[ticket],
                names=names(p) if len(names(p)) > 1 else (),
            )
            for p, ticket in tickets
            if ticket is not None
        ]  # fmt: skip


def gradient_of(parameter: Any) -> Tensor | None:
    """What lies beside a parameter after backward: `.grad`, or Megatron-Core's `main_grad`."""
    grad = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
    return local(grad) if isinstance(grad, Tensor) else None
