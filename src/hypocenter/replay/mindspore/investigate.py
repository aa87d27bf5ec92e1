"""From a failed step of MindSpore to evidence: replay under the op trace, walk to the origin, try what can be tried."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.replay import samples
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore import island
from hypocenter.replay.mindspore.engine import Replayed, Replayer
from hypocenter.replay.mindspore.host import is_finite
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.replay.mindspore.traced import Traced
from hypocenter.replay.mindspore.tracing import blamed, traced
from hypocenter.replay.testimony import testify
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall


class Investigator:
    """Investigates the failures of one run.

    Args:
        replayer: of the run's steps.
        names: the user's names.
    """

    def __init__(self, replayer: Replayer, names: NameMap) -> None:
        self._replayer, self._names = replayer, names

    def investigate(
        self, base: Evidence, microbatches: Sequence[GradCall], *, seed_scale: float = 1.0, cure: bool = True
    ) -> Evidence:
        """Replay the step's micro-batches until the failure shows again, and explain it.

        Args:
            base: what is known before any replay.
            microbatches: of the step.
            seed_scale: multiplies what backward starts from: 1 / loss scale when the scale has no part in it.
            cure: search one.
        """
        if base.loss_scale is not None:
            base = replace(base, replayed_scale=base.loss_scale * seed_scale)
        why_not, n_finite = "no micro-batch was recorded in this step", 0
        for call in sorted(microbatches, key=_suspicion):
            try:
                found = self._replayed(base, call, seed_scale)
            except ReplayImpossible as error:
                why_not = str(error)
            except Exception as error:  # the user's own code runs here: anything may come out of it
                why_not = f"the replay raised {type(error).__name__}: {_line(error)}"
            else:
                if found is not None:
                    return self._cured(*found, microbatches, seed_scale) if cure else found[0]
                n_finite += 1
        if n_finite:
            why_not = _finite(base, is_sum=n_finite == len(microbatches) > 1)
        return replace(base, replayed=n_finite > 0, why_not=why_not)

    def _cured(
        self, evidence: Evidence, tracer: OpTracer, microbatches: Sequence[GradCall], seed_scale: float
    ) -> Evidence:
        if not evidence.reproduced:
            return evidence
        try:
            cure = island.search(evidence, tracer, self._replayer, self._names, microbatches, seed_scale=seed_scale)
        except Exception as error:  # what was found out is worth more than a cure
            cure = Cure(status="cannot-tell", why=(f"the search raised {type(error).__name__}: {_line(error)}",))
        evidence = replace(evidence, cure=cure)
        return replace(evidence, remedies=island.remedies(evidence))

    def _traced(self, call: GradCall, seed_scale: float) -> tuple[OpTracer, Replayed]:
        """What was compiled is run operator by operator; if the failure does not show then, as it was."""
        with contextlib.suppress(_OnlyCompiled):
            try:
                tracer, replayed = traced(self._replayer, self._names, call, seed_scale=seed_scale, eager=True)
            except ReplayImpossible:
                raise
            except Exception as error:
                raise _OnlyCompiled from error
            if not replayed.finite:
                return tracer, replayed
        return traced(self._replayer, self._names, call, seed_scale=seed_scale)

    def _replayed(self, base: Evidence, call: GradCall, seed_scale: float) -> tuple[Evidence, OpTracer] | None:
        """None: this micro-batch is finite."""
        tracer, replayed = self._traced(call, seed_scale)
        values = [v for v in replayed.values if not is_finite(v)]
        bad = [(w, g) for w, g in zip(call.weights, replayed.grads, strict=False) if not is_finite(g)]
        if not values and not bad:
            return None
        base = replace(
            base,
            microbatch=call.number,
            replayed=True,
            replayed_bad_params=tuple(self._names.label(weight) for weight, _ in bad),
            forward_finite=not values,
            notes=(*base.notes, _DREW) if replayed.drew else base.notes,
        )
        found = None if tracer.broken else blamed(tracer, call, replayed)
        if found is None:
            why = f"the trace broke off: {tracer.broken}" if tracer.broken else _LOST
            return replace(base, why_not=why), tracer
        evidence, _, mask = testify(Traced(tracer), base, found)
        inputs = [tensor for _, tensor in self._replayer.named_inputs(call)]
        n_rows = samples.batch_size(inputs)

        def finite_with(kept: Sequence[int]) -> bool:
            return self._replayer.run(call, rows=(n_rows, kept), seed_scale=seed_scale).finite

        rows = samples.rows_of(mask, n_rows) if mask is not None else ()
        return samples.named(evidence, rows, n_rows, finite_with), tracer


class _OnlyCompiled(Exception):
    """A function that only the compiler understands."""


def _finite(base: Evidence, *, is_sum: bool) -> str:
    if base.world_size > 1:
        return "on this rank the step is finite: the value came from another rank"
    if is_sum:
        return "every micro-batch is finite alone: the sum of their gradients is not"
    return "the replay was finite: the failure depends on something that is not part of the step's inputs"


_DREW = "dropout dropped other values in the replay than in the run: MindSpore cannot draw the same again"
_LOST = "the trace lost the way from the bad value back to its origin"


def _suspicion(call: GradCall) -> tuple[bool, int]:
    """Micro-batches whose loss was not finite first, then in order."""
    return call.loss_value is None or math.isfinite(call.loss_value), call.number


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
