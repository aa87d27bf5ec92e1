"""From a failed step to evidence: micro-batches are replayed one by one until the failure shows again.

For frameworks that trace one micro-batch at a time on one device; torch has more ways (hypocenter.replay.investigate).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypocenter.diagnose.evidence import Evidence
from hypocenter.diagnose.origin import Blame
from hypocenter.replay import samples
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.testimony import testify
from hypocenter.replay.witness import Witness


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedReplay:
    """A micro-batch that was done again under the op trace."""

    tracer: Any  # the framework's own
    has_bad_values: bool  # what backward started from was not finite
    bad_params: tuple[str, ...]  # whose gradient was not finite
    blamed: Callable[[], Blame | None]  # where loss or gradients stopped being finite; None: the trace lost the way
    witness: Callable[[], Witness]  # asked after `blamed`, which may add to the trace
    inputs: Sequence[samples.Shaped]  # what came from outside
    is_finite_with: Callable[[tuple[int, Sequence[int]]], bool]  # (batch size, these rows of the batch) only
    broken: str = ""  # why the trace is not complete
    notes: tuple[str, ...] = ()  # what of the replay was not as in the run


def investigate(
    base: Evidence, microbatches: Sequence[Any], traced: Callable[[Any], TracedReplay], *, seed_scale: float = 1.0
) -> tuple[Evidence, TracedReplay | None]:
    """Replay the step's micro-batches until the failure shows again, and explain it.

    Args:
        base: what is known before any replay.
        microbatches: of the step, each with its `number` and `loss_value` (None: not known).
        traced: does one again. Raises ReplayImpossible; the user's own code may raise anything.
        seed_scale: that it multiplies what backward starts from with.

    Returns:
        The evidence, and the replay that showed the failure; None when none did.
    """
    if base.loss_scale is not None:
        base = replace(base, replayed_scale=base.loss_scale * seed_scale)
    why_not, n_finite = "no micro-batch was recorded in this step", 0
    for microbatch in sorted(microbatches, key=_suspicion):
        try:
            done = traced(microbatch)
            if done.has_bad_values or done.bad_params:
                return _explained(replace(base, microbatch=microbatch.number), done), done
            n_finite += 1
        except ReplayImpossible as error:
            why_not = str(error)
        except Exception as error:  # the user's own code runs here: anything may come out of it
            why_not = f"the replay raised {type(error).__name__}: {first_line(error)}"
    if n_finite:
        why_not = _finite(base, is_sum=n_finite == len(microbatches) > 1)
    return replace(base, replayed=n_finite > 0, why_not=why_not), None


def _explained(base: Evidence, done: TracedReplay) -> Evidence:
    base = replace(
        base,
        replayed=True,
        replayed_bad_params=done.bad_params,
        forward_finite=not done.has_bad_values,
        notes=(*base.notes, *done.notes),
    )
    found = None if done.broken else done.blamed()
    if found is None:
        return replace(base, why_not=f"the trace broke off: {done.broken}" if done.broken else _LOST)
    evidence, _, mask = testify(done.witness(), base, found)
    n_rows = samples.batch_size(done.inputs)
    rows = samples.rows_of(mask, n_rows) if mask is not None else ()
    return samples.named(evidence, rows, n_rows, lambda kept: done.is_finite_with((n_rows, kept)))


def _finite(base: Evidence, *, is_sum: bool) -> str:
    if base.world_size > 1:
        return "on this rank the step is finite: the value came from another rank"
    if is_sum:
        return "every micro-batch is finite alone: the sum of their gradients is not"
    return "the replay was finite: the failure depends on something that is not part of the step's inputs"


_LOST = "the trace lost the way from the bad value back to its origin"


def _suspicion(microbatch: Any) -> tuple[bool, int]:
    """Return a key that sorts micro-batches whose loss was not finite first, then by number."""
    return microbatch.loss_value is None or math.isfinite(microbatch.loss_value), microbatch.number


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (str(error).strip().splitlines() or [""])[0][:200]
