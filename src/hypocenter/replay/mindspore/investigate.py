"""From a failed step of MindSpore to evidence: replay under the op trace, walk to the origin, try what can be tried."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import replace

from hypocenter.diagnose.evidence import Cure, Evidence
from hypocenter.replay import step_by_step
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore import island
from hypocenter.replay.mindspore.engine import Replayed, Replayer
from hypocenter.replay.mindspore.host import is_finite
from hypocenter.replay.mindspore.trace import OpTracer
from hypocenter.replay.mindspore.traced import Traced
from hypocenter.replay.mindspore.tracing import blamed, traced
from hypocenter.replay.step_by_step import TracedReplay
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
        traced = functools.partial(self._traced, seed_scale)
        evidence, done = step_by_step.investigate(base, microbatches, traced, seed_scale=seed_scale)
        if done is None or not cure or not evidence.reproduced:
            return evidence
        try:
            found = island.search(
                evidence, done.tracer, self._replayer, self._names, microbatches, seed_scale=seed_scale
            )
        except Exception as error:  # what was found out is worth more than a cure
            why = f"the search raised {type(error).__name__}: {step_by_step.first_line(error)}"
            found = Cure(status="cannot-tell", why=(why,))
        evidence = replace(evidence, cure=found)
        return replace(evidence, remedies=island.remedies(evidence))

    def _traced(self, seed_scale: float, call: GradCall) -> TracedReplay:
        """What was compiled is run operator by operator; if the failure does not show then, as it was."""
        with contextlib.suppress(_OnlyCompiled):
            try:
                tracer, replayed = traced(self._replayer, self._names, call, seed_scale=seed_scale, eager=True)
            except ReplayImpossible:
                raise
            except Exception as error:
                raise _OnlyCompiled from error
            if not replayed.finite:
                return self._done(seed_scale, call, tracer, replayed)
        return self._done(seed_scale, call, *traced(self._replayer, self._names, call, seed_scale=seed_scale))

    def _done(self, seed_scale: float, call: GradCall, tracer: OpTracer, replayed: Replayed) -> TracedReplay:
        pairs = zip(call.weights, replayed.grads, strict=False)
        return TracedReplay(
            tracer=tracer,
            has_bad_values=not all(map(is_finite, replayed.values)),
            bad_params=tuple(self._names.label(weight) for weight, gradient in pairs if not is_finite(gradient)),
            blamed=lambda: blamed(tracer, call, replayed),
            witness=lambda: Traced(tracer),
            inputs=[tensor for _, tensor in self._replayer.named_inputs(call)],
            is_finite_with=lambda rows: self._replayer.run(call, rows=rows, seed_scale=seed_scale).finite,
            broken=tracer.broken,
            notes=(_DREW,) if replayed.drew else (),
        )


class _OnlyCompiled(Exception):
    """A function that only the compiler understands."""


_DREW = "dropout dropped other values in the replay than in the run: MindSpore cannot draw the same again"
