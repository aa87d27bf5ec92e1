"""The check of every step: loss and gradients, one transfer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hypocenter.nouns import Reading
from hypocenter.session.check import Check, Judge, norm_reading
from hypocenter.tap.clock import Clock
from hypocenter.tap.mindspore.gradients import Norms, dtype_name, exact_norm, is_finite
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall


class Sentinel:
    """Checks gradients before an update and parameters after it."""

    def __init__(self, names: NameMap, clock: Clock) -> None:
        self._names, self._clock = names, clock
        self._judge = Judge(is_finite, exact_norm)

    def check(
        self,
        pairs: Sequence[tuple[Any, Any]],
        microbatches: Sequence[GradCall],
        *,
        scale: float = 1.0,
        remember: bool = True,
    ) -> Check:
        """Compute the norms of all gradients together with the losses, and say what is wrong with them.

        Args:
            pairs: (parameter, gradient) of the update that is about to happen.
            microbatches: of this step.
            scale: loss scale that the gradients still carry.
            remember: note which gradients are exactly 0, to see at the next step which have died.
        """
        check = Check(losses=losses(microbatches))
        gradients = [gradient for _, gradient in pairs]
        norms = _known_norms(gradients, microbatches) or Norms(gradients)
        names = [self._names.label(parameter) for parameter, _ in pairs]
        self._judge.add(check, pairs, names, norms.read(), scale=scale, remember=remember)
        return check

    def of_microbatches(self, microbatches: Sequence[GradCall], scale: float = 1.0) -> Check:
        """Return what is known of gradients as backward left them, when no optimizer is given any.

        Of several micro-batches the norms are those of the last one, which holds what is not finite as well as any.
        """
        check = Check(losses=losses(microbatches))
        for call in microbatches:
            for parameter, norm in zip(call.weights, _norms_of(call), strict=False):
                name = self._names.label(parameter)
                if not math.isfinite(norm) and name not in check.bad_params:
                    check.bad_params.append(name)
                check.grad_norms[name] = norm / scale
        return check

    def readings(self, check: Check, step: int, parameters: Sequence[Any]) -> list[Reading]:
        """Return a row for each local norm: only the number of elements and the sum of squares are known."""
        known = {self._names.label(p): p for p in parameters}
        rows: list[Reading] = []
        for name, norm in check.grad_norms.items():
            is_bad = not math.isfinite(norm) or name in check.bad_params
            of = {} if (p := known.get(name)) is None else self._facts(p)
            rows.append(norm_reading(name, norm, step, self._clock.next_order(), is_bad=is_bad, **of))
        return rows

    def _facts(self, parameter: Any) -> dict[str, Any]:
        names = self._names.param_names(parameter)
        known = {"n": int(parameter.size), "dtype": dtype_name(parameter), "shape": tuple(parameter.shape)}
        return {**known, "names": names if len(names) > 1 else ()}


def losses(microbatches: Sequence[GradCall]) -> list[float]:
    """Return one loss for each micro-batch that has one, as computed, with the loss scale that is in it."""
    return [value for call in microbatches if (value := loss_of(call)) is not None]


def loss_of(call: GradCall) -> float | None:
    """Bring a loss to the host. One of several elements counts as their sum, which is what the gradient is of."""
    if call.loss_value is None and call.loss is not None:
        array = call.loss.asnumpy()
        call.loss_value = float(array.astype("float64").sum()) if array.size else None
        call.loss = None
    return call.loss_value


def _known_norms(gradients: Sequence[Any], microbatches: Sequence[GradCall]) -> Norms | None:
    """Return the norms that were taken after backward, if the optimizer is given the same tensors; else None."""
    if len(microbatches) != 1 or not isinstance(microbatches[0].norms, Norms):
        return None
    return microbatches[0].norms if microbatches[0].norms.are_of(gradients) else None


def _norms_of(call: GradCall) -> list[float]:
    return call.norms.read() if isinstance(call.norms, Norms) else []
