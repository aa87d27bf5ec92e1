"""What the sentinel of any framework saw at one update, and numbers of the run as rows."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypocenter.nouns import Reading, Summary
from hypocenter.record.norm_rows import SCALAR_PORT, scalar_summary


@dataclass(kw_only=True)
class Check:
    """What the sentinel saw at one update."""

    losses: list[float] = field(default_factory=list)
    unused: list[float] = field(default_factory=list)  # losses that the program has thrown away
    grad_norms: dict[str, float] = field(default_factory=dict)  # local L2 norms by parameter, loss scale taken out
    names: Sequence[str] | None = None
    """Of these norms, all finite and above 0: one list as long as the same parameters have gradients. None: it may be
    otherwise."""
    bad_params: list[str] = field(default_factory=list)  # gradient not finite
    newly_dead: list[str] = field(default_factory=list)  # gradient exactly 0, and was not at the step before
    peaks: dict[str, float] = field(default_factory=dict)
    """By parameter the largest magnitude, of gradients that were changed before this arrived; inf or NaN if one was."""
    unclipped: Check | None = None  # of the same gradients before the program clipped them to a norm
    lr: float | None = None  # of the optimizer that uses them
    decays: tuple[float, float] = (0.0, 0.0)  # of its running means of gradients, and of their squares; 0: it has none
    local_norm: float | None = None  # of what this rank alone computed, before it was reduced
    ahead: Check | None = None  # of gradients that other optimizers are going to use after this update
    # What follows is computed when it is first asked for, after losses and norms are there: many ask at each step.

    @functools.cached_property
    def loss_finite(self) -> bool:
        """Whether every micro-batch's loss was finite."""
        return all(map(math.isfinite, self.losses))

    def mean_loss(self, scale: float | None) -> float | None:
        """Return the mean loss over micro-batches without the loss scale that is in it; None without any loss."""
        losses = self.losses if len(self.losses) < 3 else _without_parts(self.losses)
        return sum(losses) / len(losses) / (scale or 1.0) if losses else None

    @property
    def has_finite_norms(self) -> bool:
        """Whether every gradient was finite, and its norm too."""
        return self.names is not None or (not self.bad_params and math.isfinite(sum(self.grad_norms.values())))

    @functools.cached_property
    def is_finite(self) -> bool:
        """Whether losses and gradients were all finite."""
        return not self.bad_params and all(map(math.isfinite, self.losses))

    def with_ahead(self) -> Check:
        """Return one check of this update and of those that are still to come after the same backward."""
        if self.ahead is None:
            return self
        return replace(
            self,
            grad_norms={**self.grad_norms, **self.ahead.grad_norms},
            bad_params=[*self.bad_params, *self.ahead.bad_params],
            names=None,
            ahead=None,
        )

    @functools.cached_property
    def key(self) -> str:
        """What identifies the optimizer of this check: the name of its first parameter."""
        return next(iter(self.grad_norms), "")

    @functools.cached_property
    def total_norm(self) -> float:
        """The L2 norm over all gradients of this optimizer."""
        return math.hypot(*self.grad_norms.values())


class Judge:
    """Tells which gradients are not finite, and which have died, from their norms.

    Args:
        is_finite: whether every element of a gradient is.
        exact_norm: of a gradient, in float64.
    """

    def __init__(self, is_finite: Callable[[Any], bool], exact_norm: Callable[[Any], float]) -> None:
        self._is_finite, self._exact_norm = is_finite, exact_norm
        self.alive: dict[int, bool] = {}  # id(parameter) -> its gradient was not zero at the last step

    def add(
        self,
        check: Check,
        held: Sequence[tuple[Any, Any]],
        names: Sequence[str],
        norms: Sequence[float],
        *,
        scale: float = 1.0,
        remember: bool = True,
    ) -> None:
        """Note in `check` what the norms of these gradients tell.

        Args:
            check: is added to.
            held: (parameter, gradient).
            names: of the parameters.
            norms: L2, in the format that they were computed in.
            scale: loss scale that the gradients still carry.
            remember: note which gradients are exactly 0, to see at the next step which have died.
        """
        for (parameter, gradient), name, norm in zip(held, names, norms, strict=True):
            if not math.isfinite(norm) and check.peaks:
                if not math.isfinite(check.peaks[name]):
                    check.bad_params.append(name)
                norm = check.peaks[name]  # its squares overflowed: it was at least that
            elif not math.isfinite(norm):
                if not self._is_finite(gradient):
                    check.bad_params.append(name)
                norm = self._exact_norm(gradient)
            elif norm == 0.0 and self.alive.get(id(parameter), False):
                check.newly_dead.append(name)
            if remember:
                self.alive[id(parameter)] = norm != 0.0
            check.grad_norms[name] = norm / scale


def norm_reading(name: str, norm: float, step: int, order: int, *, is_bad: bool, n: int = 0, **known: Any) -> Reading:
    """Return the row of a norm: of this tensor only the number of elements and the sum of squares are known.

    Args:
        is_bad: the tensor is not finite.
        n: elements.
        known: other fields of the row: its format, its shape; of what is no gradient its phase and port.
    """
    summary = Summary(n=n, sumsq=0.0 if is_bad else norm * norm, n_nan=int(is_bad))
    place: dict[str, Any] = {"phase": "grad", "port": "grad", "microbatch": 0, **known}
    return Reading(step=step, site=name, order=order, summary=summary, **place)


def scalar_reading(
    site: str, phase: str, value: float, step: int, order: int, microbatch: int = 0, module: str = ""
) -> Reading:
    """Return the row of one number of the run (loss, grad_norm, lr, loss_scale), as a Reading of one element.

    Args:
        module: class name of what the number is of (the loss scaler).
    """
    return Reading(
        step=step, microbatch=microbatch, phase=phase, site=site, port=SCALAR_PORT, order=order, dtype="float32",  # type: ignore[arg-type]
        summary=scalar_summary(value), module=module,
    )  # fmt: skip


def _without_parts(losses: Sequence[float]) -> list[float]:
    """Replace losses of two or more chunks that are followed by their own sum (in float32) by that sum."""
    found: list[float] = []
    since = 0  # where those begin that are no part of a sum yet
    for at, loss in enumerate(losses):
        parts = losses[since:at]
        room = len(parts) * 2.0**-23 * sum(map(abs, parts))
        if len(parts) > 1 and math.isfinite(loss) and abs(math.fsum(parts) - loss) <= room:
            del found[-len(parts) :]
            since = at + 1
        found.append(loss)
    return found
