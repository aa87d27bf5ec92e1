"""Gradients of replays, brought to what the optimizer was given: summed over micro-batches, unscaled, clipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hypocenter.config import Config
from hypocenter.nouns import Phase, Reading
from hypocenter.session.gradient_factors import Factors
from hypocenter.session.levels import UntracedReducer
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.gradients import local
from hypocenter.tap.names import NameMap
from hypocenter.tap.wanted import is_wanted


class Gradients:
    """Adds up the gradients of one sample after the other. The first one is without noise: `fit` compares with it.

    Whatever the program did to a gradient after backward (mean over micro-batches, loss scale, clipping) is taken to
    be one factor per parameter. Where it was something else, the parameter is left out.
    """

    def __init__(self, names: NameMap, config: Config, named: Sequence[tuple[str, Tensor]]) -> None:
        self._names, self._config = names, config
        self.parameters: list[Tensor] = [p for _, p in named]
        self._sums: list[Tensor | None] = [None] * len(named)
        self._factors = Factors([p.numel() for p in self.parameters])
        self.norm_ratio: float | None = None  # over all parameters, to that without noise; None: a part is not known

    def add(self, grads: Sequence[Tensor | None]) -> None:
        """Add the gradients of one micro-batch to the sums."""
        with torch.no_grad():
            for index, grad in enumerate(grads):
                values = local(grad) if grad is not None else None
                if values is None:
                    continue
                known = self._sums[index]
                self._sums[index] = values.clone() if known is None else known.add_(values)

    def fit(self) -> int:
        """Find each parameter's factor from the sums without noise, forget the sums, and return how many do not fit."""
        for index, parameter in enumerate(self.parameters):
            given, base = gradient_of(parameter), self._sums[index]
            if given is None or base is None or given.shape != base.shape:
                if given is not None:
                    self._factors.leave_out()
                continue
            a, b = in_float64(given).reshape(-1), in_float64(base).reshape(-1)
            dot, aa, bb = (float(x) for x in (torch.dot(a, b), torch.dot(a, a), torch.dot(b, b)))
            self._factors.fit(index, dot=dot, given=aa, base=bb, is_equal=torch.equal(given, base))
        self._factors.leave_out_flukes()
        self.forget()
        return self._factors.n_left_out

    def forget(self) -> None:
        """Forget the sums, so that the next sample can be added up."""
        self._sums = [None] * len(self.parameters)

    def scaled(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (parameter, gradient as its optimizer would have been given it) for the parameters that fit."""
        for index, factor in self._factors:
            total = self._sums[index]
            if total is not None:
                is_short = total.dtype.itemsize < 4 and factor != 1.0  # another rounding would be noise of ours
                yield self.parameters[index], (total.float() if is_short else total) * factor

    def settle(self, *, is_clipped: bool) -> None:
        """Finish a sample: clip its gradients to the norm without noise, if the program clipped those of the run."""
        squares = [torch.linalg.vector_norm(in_float64(s)).square().cpu() for s in self._sums if s is not None]
        square = float(torch.stack(squares).sum()) if squares else 0.0
        self.norm_ratio = self._factors.settle(square, is_clipped=is_clipped)

    def rows(self, step: int, microbatch: int, next_order: Callable[[], int]) -> list[Reading]:
        """Return the rows of this sample's gradients, in the form in which `parameter_readings` writes the run's."""
        values = (Value(phase="grad", parameter=p, port="grad", tensor=g, dtype=_dtype_of(p)) for p, g in self.scaled())
        return readings(values, self._names, self._config, step, microbatch, next_order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a parameter (such as its gradient) in one sample."""

    phase: Phase
    parameter: Tensor
    port: str
    tensor: Tensor
    dtype: torch.dtype  # of the run's


def readings(
    values: Iterable[Value], names: NameMap, config: Config, step: int, microbatch: int, next_order: Callable[[], int]
) -> list[Reading]:
    """Return rows of values, which are taken one after the other and not kept."""
    reducer = UntracedReducer(config)
    ticketed: list[tuple[tuple[str, ...], Value, tuple[int, ...], int]] = []
    with torch.no_grad():
        for value in values:
            known = names.param_names(value.parameter)
            if known and is_wanted(known, config) and (ticket := reducer.add(value.tensor)) is not None:
                bare = replace(value, tensor=_NOTHING, parameter=_NOTHING)
                ticketed.append((known, bare, tuple(value.tensor.shape), ticket))
    summaries = reducer.drain()
    return [
        Reading(
            step=step, microbatch=microbatch, phase=value.phase, site=known[0], port=value.port, order=next_order(),
            dtype=str(value.dtype).removeprefix("torch."), shape=shape, summary=summaries[ticket],
            names=known if len(known) > 1 else (),
        )
        for known, value, shape, ticket in ticketed
    ]  # fmt: skip


_NOTHING = torch.empty(0, device="cpu")


def _dtype_of(parameter: Tensor) -> torch.dtype:
    grad = gradient_of(parameter)
    return parameter.dtype if grad is None else grad.dtype


def gradient_of(parameter: Any) -> Tensor | None:
    """Return a parameter's gradient after backward: `.grad`, or Megatron-Core's `main_grad`; None without any."""
    grad = parameter.grad if parameter.grad is not None else getattr(parameter, "main_grad", None)
    return local(grad) if isinstance(grad, Tensor) else None
