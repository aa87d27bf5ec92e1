"""What to do about a step of MindSpore that failed: hypocenter.session.replayed_failures with MindSpore's replays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.host import is_finite
from hypocenter.replay.mindspore.investigate import Investigator as Replays
from hypocenter.session.check import Check
from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.failed import Failed, plain_evidence
from hypocenter.session.mindspore.seams import Context, Investigator
from hypocenter.session.replayed_failures import ReplayedFailures
from hypocenter.session.scale_watch import Answer
from hypocenter.tap.mindspore.tape import GradCall


class Failures(Investigator):
    """Turns failed steps into evidence."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._replayer = Replayer(context.names, context.paused)
        investigate = Replays(self._replayer, context.names).investigate
        self._failures = ReplayedFailures(context, context.rank_directory, investigate, self._at_scale_1)

    def went_well(self, check: Check, step: int, scale: float | None) -> None:
        """Note the loss scale of a step whose loss and gradients were finite."""
        self._failures.went_well(check, step, scale)

    def investigate(self, failed: Failed) -> str:
        """Replay a step that failed, unless it is an ordinary skip or one too many. Returns the evidence's id or ""."""
        return self._failures.investigate(failed)

    def _at_scale_1(self, scale: float, microbatches: Sequence[GradCall]) -> tuple[Answer, list[float]]:
        """Replay the step without its loss scale: is it finite, and the sum of its micro-batches? With its losses."""
        losses: list[float] = []
        sums: list[Any] = []
        for call in microbatches:
            replayed = self._replayer.run(call, seed_scale=1.0 / scale)
            if not replayed.finite:
                return "not-finite", []
            losses += [float(value.asnumpy()) for value in replayed.values[:1] if not value.shape]
            if len(microbatches) > 1:
                sums = [a + b for a, b in zip(sums, replayed.grads, strict=True)] if sums else replayed.grads
        return ("finite" if all(is_finite(total) for total in sums) else "not-finite"), losses


class Unreplayed(Investigator):
    """Stands in where nothing can be replayed."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._n_written = 0

    def investigate(self, failed: Failed) -> str:
        """Write evidence of the first steps that failed, as the check saw them; not of skips by a loss scaler."""
        is_scaled_skip = failed.scale is not None and failed.check.loss_finite
        if self._n_written >= self.context.config.max_replays or is_scaled_skip:
            return ""
        self._n_written += 1
        evidence = plain_evidence(failed, self.context.rank(), why_not="this step cannot be replayed")
        write_evidence(self.context.rank_directory() / "bundles", evidence, self.context.warn)
        return evidence.id
