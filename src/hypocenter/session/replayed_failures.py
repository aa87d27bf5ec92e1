"""What to do about a step that failed: replay or not, evidence, and what is a loss scaler's business.

For frameworks of one process whose micro-batches can be done again in place; torch has more to decide
(hypocenter.session.failures).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypocenter.diagnose.evidence import Evidence, Trigger
from hypocenter.session.check import Check
from hypocenter.session.events import Observed
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.failed import Failed, plain_evidence
from hypocenter.session.observers.culprit import last_in_model
from hypocenter.session.scale_watch import Answer, Judged, ScaleWatch
from hypocenter.session.stalls import stalling

MAX_SCALE_REPLAYS = 2  # traced replays of steps that one layer made the scaler skip


class ReplayedFailures:
    """Turns failed steps into evidence, at most `config.max_replays` times.

    Args:
        context: of the session.
        folder: of this rank.
        investigate: (evidence so far, micro-batches, seed_scale=, cure=) -> evidence; see replay.step_by_step.
        at_scale_1: (loss scale, micro-batches) -> whether the step is finite without it, and its losses then. May
            raise: it cannot be told.
    """

    def __init__(
        self,
        context: Observed,
        folder: Callable[[], Path],
        investigate: Callable[..., Evidence],
        at_scale_1: Callable[[float, Sequence[Any]], tuple[Answer, list[float]]],
    ) -> None:
        self._context, self._folder = context, folder
        self._investigate, self._finite_at_1 = investigate, at_scale_1
        self._scale_watch = ScaleWatch(functools.partial(last_in_model, context.names), self._at_scale_1)
        self._n_replays = self._n_scale = 0
        self._losses: list[float] = []  # of the last replay at scale 1

    def went_well(self, check: Check, step: int, scale: float | None) -> None:
        """Note the loss scale of a step whose loss and gradients were finite."""
        if _counts(scale):
            self._scale_watch.went_through(check, step, scale or 1.0)

    def investigate(self, failed: Failed) -> str:
        """Replay a step that failed, unless it is an ordinary skip or one too many. Returns the evidence's id or ""."""
        trigger, facts = self._trigger(failed)
        if trigger is None or self._n_replays >= self._context.config.max_replays:
            return ""
        self._n_replays += 1
        base = plain_evidence(failed, self._context.rank())
        base = replace(base, trigger=trigger, id=f"step-{failed.step:06d}-{trigger}")
        if not self._context.config.replay:
            evidence = replace(base, why_not="replay is switched off (replay = false)")
        else:
            is_known = trigger != "skipped-step" and "finite_at_scale_1" in facts
            seed_scale = 1.0 / failed.scale if is_known and failed.scale else 1.0
            cure = self._context.config.cure != "off"
            with stalling(f"step {failed.step} is done again to find where it broke"):
                evidence = self._investigate(base, failed.microbatches, seed_scale=seed_scale, cure=cure)
        if trigger == "skipped-step" and not evidence.reproduced:
            return ""  # a skip that cannot be shown again accuses nobody
        if trigger in ("nonfinite-grad", "nonfinite-loss") and evidence.reproduced:
            self._scale_watch.explained(failed.check)
        evidence = replace(evidence, facts={**evidence.facts, **facts})
        write_evidence(self._folder() / "bundles", evidence, self._context.warn)
        return evidence.id

    def _trigger(self, failed: Failed) -> tuple[Trigger | None, dict[str, float | str]]:
        """Return why this step is to be investigated (None: it is not), and the facts that are known already."""
        judged = None
        # where the loss carries no scale, a loss that is not finite is not the scale's doing
        if _counts(failed.scale) and (failed.is_loss_scaled or failed.check.loss_finite):
            judged = self._scale_watch.skipped(
                failed.check, failed.bad_params, failed.step, failed.scale or 1.0, failed.microbatches
            )
        symptom: Trigger = "nonfinite-grad" if failed.check.loss_finite else "nonfinite-loss"
        if judged is None:
            return symptom, {}
        if symptom == "nonfinite-loss" and judged.at_scale_1 != "not-finite":
            self._mend_losses(failed, judged)
        return self._of_skip(judged, symptom)

    def _mend_losses(self, failed: Failed, judged: Judged) -> None:
        """Record the losses without their scale: in float16 a loss may be infinite only with the scale in it."""
        scale = failed.scale or 1.0
        asked = judged.at_scale_1 == "finite" or self._at_scale_1(scale, failed.microbatches) == "finite"
        if asked and len(self._losses) == len(failed.check.losses):
            failed.check.losses[:] = [loss * scale for loss in self._losses]

    def _of_skip(self, judged: Judged, symptom: Trigger) -> tuple[Trigger | None, dict[str, float | str]]:
        """Investigate a skip if the scale is not its cause, if it comes again and again, or if it never ends."""
        if judged.at_scale_1 == "not-finite":
            return symptom, {"finite_at_scale_1": 0.0}
        if judged.at_scale_1 == "cannot-tell" and judged.is_collapse:
            return symptom, {}
        if judged.is_again and self._n_scale < MAX_SCALE_REPLAYS:
            self._n_scale += 1
            return "skipped-step", {"finite_at_scale_1": 1.0}
        return None, {}

    def _at_scale_1(self, scale: float, microbatches: Sequence[Any]) -> Answer:
        """Replay the step with the loss scale taken out of what backward starts from, and say if it is finite then."""
        self._losses = []
        if not self._context.config.replay or not microbatches:
            return "cannot-tell"
        try:
            answer, self._losses = self._finite_at_1(scale, microbatches)
        except Exception:  # the user's own code runs here: anything may come out of it
            return "cannot-tell"
        return answer


def _counts(scale: float | None) -> bool:
    """Return whether there is a loss scale that can be divided by."""
    return scale is not None and 0.0 < scale < math.inf
