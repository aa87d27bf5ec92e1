"""The check of every step: loss, gradients and parameters in one fused pass and one transfer."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch

from hypocenter.nouns import Reading, Summary
from hypocenter.session.check import Check
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.clock import Clock
from hypocenter.tap.flat_parameters import is_flat, originals, unfolded
from hypocenter.tap.gradients import is_finite, local, norms, to_host, to_host_with
from hypocenter.tap.names import NameMap
from hypocenter.tap.tape import Microbatch

ROTATION = 8  # updates in which each float32 parameter is looked at once; all of them each time would cost 0.5 %


class Sentinel:
    """Checks gradients before an update and parameters after it. One device-to-host transfer per check."""

    def __init__(self, names: NameMap, clock: Clock) -> None:
        self._names = names
        self._clock = clock
        self._alive: dict[int, bool] = {}  # id(parameter) -> its gradient was not zero at the last step
        self._labels: dict[int, tuple[torch.Tensor, str]] = {}
        self._riders: list[tuple[torch.Tensor, Callable[[Sequence[float]], None]]] = []

    def ride(self, numbers: torch.Tensor, read: Callable[[Sequence[float]], None]) -> None:
        """Take a float32 vector along in the next transfer of gradients' norms, and give it to `read` then."""
        self._riders.append((numbers, read))

    def gradients(
        self,
        gradients: Sequence[tuple[torch.Tensor, torch.Tensor]],
        microbatches: Sequence[Microbatch],
        *,
        scale: float = 1.0,
        remember: bool = True,
    ) -> Check:
        """Norms of all gradients together with the losses.

        Args:
            gradients: (parameter, gradient) of the update that is about to happen.
            microbatches: of this step.
            scale: loss scale that the gradients still carry.
            remember: note which gradients are exactly 0, to see at the next step which have died.
        """
        held = [pair for p, grad in gradients if (g := local(grad)) is not None for pair in unfolded(p, g)]
        values = [value for microbatch in microbatches for value in microbatch.values]
        riders, self._riders = self._riders, []
        host, told = to_host_with([*norms([g for _, g in held]), *values], [numbers for numbers, _ in riders])
        for (_, read), numbers in zip(riders, told, strict=True):
            read(numbers)
        found = host[: len(held)]
        check = Check(losses=host[len(held) :])
        names = [self.label(parameter) for parameter, _ in held]
        if found and min(found) > 0.0 and math.isfinite(sum(found)):  # a NaN makes the sum one
            check.grad_norms = dict(zip(names, found if scale == 1.0 else [n / scale for n in found], strict=True))
            if remember:
                self._alive.update(dict.fromkeys([id(parameter) for parameter, _ in held], True))
            return check
        for (parameter, grad), name, norm in zip(held, names, found, strict=True):
            if not math.isfinite(norm):
                if not is_finite(grad):
                    check.bad_params.append(name)
                norm = float(torch.linalg.vector_norm(in_float64(grad)))
            elif norm == 0.0 and self._alive.get(id(parameter), False):
                check.newly_dead.append(name)
            if remember:
                self._alive[id(parameter)] = norm != 0.0
            check.grad_norms[name] = norm / scale
        return check

    def start_parameters(
        self, parameters: Sequence[torch.Tensor], turn: int | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """(parameter, norm on its device) after an update; `bad_parameters` reads them, now or at the next check.

        Args:
            parameters: of the optimizer.
            turn: half-precision parameters, whose updates do break, are looked at each time; of the others only every
                ROTATION-th, those whose turn it is. None: all.
        """
        held = [
            (p, values)
            for i, p in enumerate(parameters)
            if (turn is None or p.dtype.itemsize < 4 or i % ROTATION == turn % ROTATION)
            and (values := local(p)) is not None
        ]
        return [(p, norm) for (p, _), norm in zip(held, norms([v for _, v in held]), strict=True)]

    def bad_parameters(self, started: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        """Parameters that hold non-finite values."""
        host = to_host([norm for _, norm in started])
        suspects = [p for (p, _), norm in zip(started, host, strict=True) if not math.isfinite(norm)]
        return [p for p in suspects if (values := local(p)) is not None and not is_finite(values)]

    def label(self, parameter: torch.Tensor) -> str:
        """The user's name of a parameter; one outside every watched model is named by its shape."""
        known = self._labels.get(id(parameter))
        if known is not None and known[0] is parameter:
            return known[1]
        name = self._names.param_name(parameter)
        if name is None:
            return f"parameter {tuple(parameter.shape)} outside the model"
        self._labels[id(parameter)] = (parameter, name)
        return name

    def labels_of_bad(self, parameter: torch.Tensor) -> list[str]:
        """The user's names of what is not finite in a parameter: several, when it is a flat one of FSDP1."""
        values = local(parameter) if is_flat(parameter) else None
        parts = [] if values is None else unfolded(parameter, values)
        return [self.label(p) for p, part in parts if not is_finite(part)] or [self.label(parameter)]

    def readings(self, check: Check, step: int, parameters: Sequence[torch.Tensor]) -> list[Reading]:
        """One row per local norm: at this level only the number of elements and the sum of squares are known."""
        users = [o for p in parameters for o in ([o for _, o in originals(p)] if is_flat(p) else [p])]
        sizes = {self.label(p): _described(p.shape, p.dtype) for p in users}
        rows: list[Reading] = []
        for name, norm in check.grad_norms.items():
            n, shape, dtype = sizes.get(name, (0, (), ""))
            bad = not math.isfinite(norm) or name in check.bad_params
            rows.append(
                Reading(
                    step=step,
                    microbatch=0,
                    phase="grad",
                    site=name,
                    port="grad",
                    order=self._clock.next_order(),
                    dtype=dtype,
                    shape=shape,
                    summary=Summary(n=n, sumsq=0.0 if bad else norm * norm, n_nan=int(bad)),
                )
            )
        return rows


@functools.lru_cache(maxsize=1 << 14)
def _described(shape: torch.Size, dtype: torch.dtype) -> tuple[int, tuple[int, ...], str]:
    """Number of elements, shape and format as rows have them; the same objects each time."""
    return shape.numel(), tuple(shape), str(dtype).removeprefix("torch.")
