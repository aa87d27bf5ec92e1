"""The loss scale of the step under way, and which of its numbers carry it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]

from hypocenter.session.check import Check
from hypocenter.tap.mindspore.tape import GradCall, Scale
from hypocenter.tap.scaled import ScaledUpdate, ScalerState

_NEARLY = 0.99  # gradients that shrank by the scale, less rounding, have it taken out


class StepScale:
    """What the loss scalers have told in this step.

    Attributes:
        value: loss scale; None when there is none.
        told: (scale, class of the scaler) for the row of the scale; None when there is none.
        in_loss: scale that the losses carry; None when they carry none.
        scaler: whose scale it is; None when that is not known.
    """

    def __init__(self) -> None:
        self.value: float | None = None
        self.told: tuple[float, str] | None = None
        self.in_loss: float | None = None
        self.scaler: Any = None
        self._is_unscaled = False

    def note(self, scale: Scale) -> None:
        """Note the scale that a scaler multiplied the loss by, or that backward was started with."""
        self.value = scale.read()
        self.told, self.scaler = (self.value, scale.kind), scale.scaler
        self.in_loss = self.value if scale.in_loss else None

    def unscaled(self, scale: Scale) -> None:
        """Note the scale by which a scaler divides the gradients: it counts as the step's."""
        self._is_unscaled = True
        self.value = scale.read()
        self.told, self.scaler = self.told or (self.value, scale.kind), scale.scaler

    def carried(self, microbatches: Sequence[GradCall]) -> float:
        """Return the loss scale in gradients as they come out of backward; 1 when there is none."""
        known = [call.scale.read() for call in microbatches if call.scale is not None]
        return (known[-1] if known else 1.0 if self._is_unscaled else self.value) or 1.0

    def used(self, optimizer: Any, gradients: Sequence[tuple[Any, Any]]) -> ScaledUpdate | None:
        """Return the step's scaler at the update, in the words of every framework; None without a scaler."""
        if self.value is None or self.told is None:
            return None
        state = ScalerState(kind=self.told[1], scale=self.value, growth_tracker=_counter(self.scaler))
        return ScaledUpdate(
            scaler=self.scaler,
            optimizer=optimizer,
            read_state=lambda: state,
            gradients=gradients,
            is_unscaled=self._is_unscaled,
        )

    def left_in(self, raw: Check, given: Check, optimizer: Any, microbatches: Sequence[GradCall]) -> float:
        """Return the loss scale that is left in the gradients that an optimizer is given.

        An optimizer may take it out itself (`loss_scale=`). Otherwise, where no scaler was seen to do it, the
        gradients' size tells: what shrank by the whole scale has none left.

        Args:
            raw: of the gradients as they came out of backward.
            given: of those that the optimizer is given.
            optimizer: that is about to update.
            microbatches: of this step.
        """
        own = getattr(optimizer, "loss_scale", 1.0)
        if isinstance(own, (int, float)) and own > 0 and own != 1.0:
            if self.value is None:
                self.value, self.told = float(own), (float(own), type(optimizer).__name__)
            return float(own)
        if self.value is None or self._is_unscaled:
            return 1.0
        was, now = raw.total_norm, given.total_norm
        is_taken_out = now * self.value <= was / _NEARLY if was == was and now == now else True
        return 1.0 if is_taken_out else self.value

    def end_step(self) -> None:
        """Forget the scale: the step is over."""
        self.value = self.told = self.in_loss = self.scaler = None
        self._is_unscaled = False


def _counter(scaler: Any) -> int | None:
    """Return how many steps without an overflow there were since the scale last changed; None if it is not known."""
    counter: Any = getattr(scaler, "counter", getattr(scaler, "cur_iter", None))
    return int(counter.asnumpy().reshape(-1)[0]) if isinstance(counter, ms.Tensor) and counter.size else None
