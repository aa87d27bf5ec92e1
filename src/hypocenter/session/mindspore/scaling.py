"""How gradients and the loss scale meet in MindSpore: clipped, divided, never multiplied, started anew.

Norms of every micro-batch's gradients are there anyway, and each micro-batch knows the scale that it was multiplied by.
Where none was seen and a scaler divides all the same, a replay tells what the program itself has multiplied in.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms  # pyright: ignore[reportMissingImports]
from mindspore import amp  # pyright: ignore[reportMissingImports]

from hypocenter.detect import misuse
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.multiplier import multiplier
from hypocenter.session.check import Check
from hypocenter.session.events import Update
from hypocenter.session.mindspore.seams import Context
from hypocenter.session.observers.scale_use import ScaleUse
from hypocenter.tap.mindspore.gradients import Norms, dtype_name
from hypocenter.tap.mindspore.optimizers import counter_of
from hypocenter.tap.mindspore.scalers import scale_value
from hypocenter.tap.mindspore.tape import GradCall, Scale
from hypocenter.tap.scaled import ScaledUpdate, ScalerState, Unscaling

MOST_REPLAYS = 4  # for what the loss was multiplied by; the rule needs two
LOOK_EVERY = 256  # steps between two looks at the types that a loss scaler works with


class Scaling(ScaleUse[Context]):
    """Measures what the rules on clipping, unscaling and resuming judge."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        self._n_replays = self._n_scaled = 0
        self._is_unscaled = False
        self._first: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()  # scale it was made with
        self._judged: weakref.WeakSet[Any] = weakref.WeakSet()
        self._updated: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that have updated under our eyes

    def attach(self) -> Callable[[], None]:
        """Watch for loss scalers that are made."""
        for kind in (amp.DynamicLossScaler, amp.StaticLossScaler):
            self.context.patches.wrap(kind, "__init__", self._made)
        return lambda: None

    def _made(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(scaler: Any, *args: Any, **kwargs: Any) -> None:
            original(scaler, *args, **kwargs)
            self._first[scaler] = _host(scale_value(scaler))

        return __init__

    def before_unscale(self, unscaling: Unscaling) -> None:
        """Note that a scaler divides gradients."""
        self._is_unscaled = True

    def seen_before_clip(self, parameters: Sequence[Any], check: Check) -> None:
        """Keep the norms that a clip is about to see, and whether the loss scale is still in them."""
        is_scaled = any(call.scale is not None for call in self.context.tape.microbatches)
        self.clips.append((dict(check.grad_norms), is_scaled and not self._is_unscaled))

    def before_update(self, update: Update) -> None:
        """Compare the norms of gradients at the update with those that backward left."""
        scaled = update.scaled
        if scaled is None:
            return
        if self._n_scaled % LOOK_EVERY == 0 and _is_all_bfloat16(self.context, update):
            self.note(update, misuse.BFLOAT16, [1.0])
        self._n_scaled += 1
        self._look_at_state(update, scaled)
        scale = scaled.state.scale
        if update.skipped or update.check.bad_params or not 0.0 < scale < math.inf:
            return
        others = [call.scale.read() for call in update.microbatches if call.scale is not None]
        self.note(update, misuse.OTHER_SCALE, [other for other in others if other != scale][:1], misuse.ADJUST)
        self.multipliers = [
            math.inf if call.scale is not None else self._multiplier(call) for call in update.microbatches
        ]
        if self.is_applied(update, scale):
            self.compare(update, scale, self._as_backward_left_them(update))

    def after_update(self, update: Update) -> None:
        """Forget what was measured: all of it belonged to this update."""
        self._is_unscaled = False
        self.forget()
        if update.optimizer is not None:
            self._updated.add(update.optimizer)

    def _multiplier(self, call: GradCall) -> float | None:
        if self._n_replays >= MOST_REPLAYS or not self.context.config.replay:
            return None
        self._n_replays += 1
        try:
            return multiplier(self._replayer, call)
        except ReplayImpossible:
            return None

    def _as_backward_left_them(self, update: Update) -> dict[str, float]:
        """Return the norms that backward left, in a step of one micro-batch; of several the sum is not known yet."""
        if len(update.microbatches) != 1 or not isinstance(update.microbatches[0].norms, Norms):
            return {}
        call = update.microbatches[0]
        return dict(zip(map(self.context.label, call.weights), call.norms.read(), strict=False))

    def _look_at_state(self, update: Update, scaled: ScaledUpdate) -> None:
        """Find out at a scaler's first step if it is new although the optimizer goes on from a checkpoint."""
        scaler, optimizer = scaled.scaler, update.optimizer
        if scaler not in self._first or scaler in self._judged or optimizer is None:
            return
        self._judged.add(scaler)
        as_new = not scaled.state.growth_tracker and scaled.state.scale == self._first[scaler]
        counter = counter_of(optimizer)
        if as_new and counter is not None and optimizer not in self._updated:
            done = _host(counter)  # that it was made anew: a scale that was loaded may be the first one by chance
            self.note(update, misuse.FRESH, [done] if done > 1 else [], "found")


def _is_all_bfloat16(context: Context, update: Update) -> bool:
    """Return whether gradients or parameters are of bfloat16, and nothing is of float16."""
    kinds = {dtype_name(each) for pair in update.gradients for each in pair}
    kinds |= {dtype_name(weight) for call in update.microbatches for weight in call.weights}
    for root in context.names.roots():
        for _, cell in root.cells_and_names():
            kinds |= {name for name in ("bf16", "fp16") if getattr(cell, name, False)}  # set by Cell.to_float
    return bool(kinds & {"bfloat16", "bf16"}) and not kinds & {"float16", "fp16"}


def _host(value: Any) -> float:
    return float(value.asnumpy().reshape(-1)[0])


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
