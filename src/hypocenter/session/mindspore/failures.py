"""What to do about a step of MindSpore that failed: replay or not, evidence, and what is a loss scaler's business."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypocenter.diagnose.evidence import Evidence, Trigger
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.host import is_finite
from hypocenter.replay.mindspore.investigate import Investigator as Replays
from hypocenter.session.check import Check
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.mindspore.seams import Context, Failed, Investigator
from hypocenter.session.mindspore.unreplayed import plain_evidence
from hypocenter.session.scale_watch import Answer, Judged, ScaleWatch
from hypocenter.tap.mindspore.tape import GradCall

MAX_SCALE_REPLAYS = 2  # traced replays of steps that one layer made the scaler skip


class Failures(Investigator):
    """Turns failed steps into evidence, at most `config.max_replays` times."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        self._replays = Replays(self._replayer, context.names)
        self._scale_watch = ScaleWatch(self._last_in_model, self._at_scale_1)
        self._n_replays = self._n_scale = 0
        self._losses: list[float] = []  # of the last replay at scale 1

    def went_well(self, check: Check, step: int, scale: float | None) -> None:
        """Loss and gradients were finite."""
        if _counts(scale):
            self._scale_watch.went_through(check, step, scale or 1.0)

    def investigate(self, failed: Failed) -> str:
        """Replay a step that failed, if it is news. Returns the evidence's id, or ""."""
        trigger, facts = self._trigger(failed)
        if trigger is None or self._n_replays >= self.context.config.max_replays:
            return ""
        self._n_replays += 1
        base = plain_evidence(failed, self.context, why_not="")
        base = replace(base, trigger=trigger, id=f"step-{failed.step:06d}-{trigger}")
        if not self.context.config.replay:
            evidence = replace(base, why_not="replay is switched off (replay = false)")
        else:
            is_known = trigger != "skipped-step" and "finite_at_scale_1" in facts
            seed_scale = 1.0 / failed.scale if is_known and failed.scale else 1.0
            cure = self.context.config.cure != "off"
            evidence = self._replays.investigate(base, failed.microbatches, seed_scale=seed_scale, cure=cure)
        if trigger == "skipped-step" and not evidence.reproduced:
            return ""  # a skip that cannot be shown again accuses nobody
        if trigger in ("nonfinite-grad", "nonfinite-loss") and evidence.reproduced:
            self._scale_watch.explained(failed.check)
        return self._write(replace(evidence, facts={**evidence.facts, **facts}))

    def _trigger(self, failed: Failed) -> tuple[Trigger | None, dict[str, float | str]]:
        """What is to be investigated, and what is known already."""
        is_scaled = any(call.scale is not None and call.scale.in_loss for call in failed.microbatches)
        judged = None
        if _counts(failed.scale) and (is_scaled or failed.check.loss_finite):  # else the scale has no part in the loss
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
        """A loss in float16 may be infinite only with the scale in it: what is recorded is the one without."""
        scale = failed.scale or 1.0
        asked = judged.at_scale_1 == "finite" or self._at_scale_1(scale, failed.microbatches) == "finite"
        if asked and len(self._losses) == len(failed.check.losses):
            failed.check.losses[:] = [loss * scale for loss in self._losses]

    def _of_skip(self, judged: Judged, symptom: Trigger) -> tuple[Trigger | None, dict[str, float | str]]:
        """A skip is investigated when the scale is not its cause, when it comes again and again, when it never ends."""
        if judged.at_scale_1 == "not-finite":
            return symptom, {"finite_at_scale_1": 0.0}
        if judged.at_scale_1 == "cannot-tell" and judged.is_collapse:
            return symptom, {}
        if judged.is_again and self._n_scale < MAX_SCALE_REPLAYS:
            self._n_scale += 1
            return "skipped-step", {"finite_at_scale_1": 1.0}
        return None, {}

    def _last_in_model(self, bad: Sequence[str]) -> str:
        wanted = set(bad)
        return next((name for name, _ in reversed(self.context.names.parameters()) if name in wanted), "")

    def _at_scale_1(self, scale: float, microbatches: Sequence[GradCall]) -> Answer:
        """Replays the step with the loss scale taken out of what backward starts from."""
        if not self.context.config.replay or not microbatches:
            return "cannot-tell"
        sums: list[Any] = []
        self._losses.clear()
        try:
            for call in microbatches:
                replayed = self._replayer.run(call, seed_scale=1.0 / scale)
                if not replayed.finite:
                    return "not-finite"
                self._losses += [float(value.asnumpy()) for value in replayed.values[:1] if not value.shape]
                if len(microbatches) > 1:
                    sums = [a + b for a, b in zip(sums, replayed.grads, strict=True)] if sums else replayed.grads
        except ReplayImpossible:
            return "cannot-tell"
        except Exception:  # the user's own code runs here: anything may come out of it
            return "cannot-tell"
        return "finite" if all(is_finite(total) for total in sums) else "not-finite"

    def _write(self, evidence: Evidence) -> str:
        problem = write_evidence(self.context.rank_directory() / "bundles", evidence)
        if problem:
            self.context.warn(f"the evidence cannot be written: {problem}")
        return evidence.id


def _counts(scale: float | None) -> bool:
    """Whether there is a scale to look at: nothing can be divided by another."""
    return scale is not None and 0.0 < scale < math.inf
