"""The law of precision: what forward computes is what exact arithmetic gives, but for some rounding. For HC236.

Rarely, the last micro-batch of a step is done again with a shadow in float64 behind every value
(hypocenter.replay.shadow). Measured on 19 families of models of Transformers, in bfloat16 and float16, as weights or by
autocast, fresh and trained: no result of more than a few elements is farther from its shadow than 0.034 of its norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hypocenter import own_time, schedule
from hypocenter.config import Config
from hypocenter.detect.law_rows import INDICES, INEXACT, SITE, WRAPPED
from hypocenter.nouns import Reading, replace
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.shadow import Step, Wrapped
from hypocenter.session.counted import Counting, first_miscounted
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.session.without_hooks import without_hooks
from hypocenter.tap.free_memory import free_bytes, peak_bytes
from hypocenter.tap.op_context import OpContext

DUE = "8,64,512,4096,every=32768"
FREE_S, SHARE = 1.0, 0.002  # that it may take: so much, or of the time since the first step
MEMORY = 0.25  # of what is free
ELEMENTS = 16  # of a result, at least: a loss of 0.01 is a difference of larger numbers
TOLD = 0.05  # of the norm
BEGAN = 0.02  # of that: what an operand is off, to be where it began
LOST = 64 * torch.finfo(torch.float32).eps  # error of a result in float32 to which what is far off has added nothing
_PICKS = frozenset(
    {"gather", "index", "index_select", "masked_select", "nll_loss_forward", "nll_loss2d_forward", "take"}
)

_SHORT = ("bfloat16", "float16")


class Precision(Observer):
    """Writes a row for the operator from which on a result is far from what exact arithmetic gives."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether replays are allowed."""
        return config.audit != "never" and config.replay

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_due = schedule.parse(DUE)
        self._began = own_time.now()
        self._told: set[str] = set()
        self._is_off = False

    def before_update(self, update: Update) -> None:
        """Replay a due step in float64 before the update, while parameters are still those that it started from."""
        if self._is_off or not self._is_due(update.step) or not update.microbatches or not update.check.is_finite:
            return
        if self.context.rank()[0] != 0:
            return  # the others run the same code
        microbatch, parameters = update.microbatches[-1], [p for p in update.parameters if p.requires_grad]
        limit_s = max(FREE_S, SHARE * (own_time.now() - self._began))
        limit_bytes = _room(parameters[0].device) if parameters else 0
        context = OpContext(self.context.names.module_name, knows_callers=False)
        shadow = Counting(context, limit_s=limit_s, limit_bytes=limit_bytes)
        replayer = self.context.replayer
        try:
            wanted = parameters if replayer.needs_backward(microbatch) else []  # what is told is of forward
            with torch.enable_grad(), without_hooks(parameters):
                replayer.run(microbatch, wanted, mode=shadow, context=context, must_leave_no_trace=True)
        except ReplayImpossible:
            return
        except Exception:  # the user's own code runs here, under a mode that it may not like: it is not tried again
            self._is_off = True
            return
        with torch.no_grad():
            shadow.finish()
        self._tell(shadow, update.step)

    def _tell(self, shadow: Counting, step: int) -> None:
        found = first_inexact(shadow.steps, shadow.n_of_model)
        if found is not None:
            self._add(_inexact(shadow.steps, found), step)
        counted = first_miscounted(shadow.steps, shadow.terms, TOLD)
        if counted is not None:
            self._add(_miscounted(shadow.steps, *counted), step)
        for wrapped in shadow.wrapped[:1]:
            self._add(_wrapped(wrapped), step)

    def _add(self, row: Reading, step: int) -> None:
        key = f"{row.port} {row.site} {row.op} {row.source}"
        if key not in self._told:
            self._told.add(key)
            self.rows.append(replace(row, step=step, order=self.context.clock.next_order()))


def first_inexact(steps: Sequence[Step], n_of_model: int) -> int | None:
    """Return the number of the first operator of forward whose result is far off, of operands that are not.

    What only picks elements is left out. So is what a parameter makes of exact operands in float32: where training
    brings an output to zero, it is a small difference of large numbers, and as good as that format allows. And so is
    what comes to nothing.

    Args:
        n_of_model: how many come up to the last use of a parameter: a loss may be a small difference of large numbers.
    """
    for number, each in enumerate(steps[:n_of_model]):
        before = max(each.before, default=0.0)
        is_far = each.error >= TOLD and before < TOLD
        is_of_forward = each.place.phase == "forward" and not each.place.recompute
        is_learned = each.is_learned and each.dtype not in _SHORT and before < BEGAN * TOLD
        is_meant = each.op.split(".")[1] in _PICKS or is_learned
        if is_far and is_of_forward and each.n >= ELEMENTS and not is_meant and not comes_to_nothing(steps, number):
            return number
    return None


def comes_to_nothing(steps: Sequence[Step], number: int) -> bool:
    """Return whether all that a result which is far off is used for ends in float32 that is exact to the last digits.

    A scale that is 1 but for rounding, less 1, times an output, is added to that output: DoRA, before its first update.
    """
    far, used, is_lost = {number}, set[int](), False
    for at, each in enumerate(steps[number + 1 :], number + 1):
        given = far.intersection(each.made_by)
        if not given or each.place.phase != "forward" or each.place.recompute:
            continue
        used |= given
        if each.error >= TOLD:
            far.add(at)
        elif each.dtype in _SHORT or each.error > LOST:
            return False
        else:
            is_lost = True
    return is_lost and used == far


def origin_of(steps: Sequence[Step], number: int) -> int:
    """Return where an operator's error began: follow the operand that is off most, while that explains it."""
    while True:
        each = steps[number]
        pairs = [(error, made) for error, made in zip(each.before, each.made_by, strict=True) if made >= 0]
        error, made = max(pairs, default=(0.0, -1))
        if made < 0 or made >= number or error < BEGAN * min(each.error, TOLD):
            return number
        number = made


def _room(device: torch.device) -> int:
    """Return how many bytes may be used: a share of what is free, and no more than the step itself takes."""
    free = int(MEMORY * free_bytes(device))
    return min(free, peak_bytes(device) or free)


def _inexact(steps: Sequence[Step], number: int) -> Reading:
    """Return the row that HC236 reads: see hypocenter.detect.law_rows."""
    each, origin = steps[number], steps[origin_of(steps, number)]
    row = number_row(each.place.site or SITE, INEXACT, 0, 0, each.error, dtype=each.dtype, module=origin.op)
    source = origin.place.source() if origin is not each else None
    where = (f"{source.file}:{source.line}",) if source is not None else ()
    names = (f"{max(each.before, default=0.0):.3g}", origin.dtype, *where)
    return replace(row, op=each.op, source=each.place.source(), names=names)


def _miscounted(steps: Sequence[Step], first: int, last: int) -> Reading:
    """Return the same row for a sum beside the graph: where it begins to be wrong, and how far off it ends up."""
    row = number_row(SITE, INEXACT, 0, 0, steps[last].error, dtype=steps[first].dtype, module=steps[first].op)
    names = (f"{max(steps[first].before, default=0.0):.3g}", steps[first].dtype)
    return replace(row, op=steps[first].op, source=steps[first].place.source(), names=names)


def _wrapped(wrapped: Wrapped) -> Reading:
    row = number_row(wrapped.place.site or SITE, WRAPPED, 0, 0, wrapped.n_wrong, dtype=wrapped.dtype, call=wrapped.n)
    names = (INDICES,) if wrapped.are_indices else ()
    return replace(row, op=wrapped.op, source=wrapped.place.source(), names=names)
