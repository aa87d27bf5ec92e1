"""Evidence of a failed step without a replay: what the check itself saw."""

from __future__ import annotations

from hypocenter.session.evidence_file import write_evidence
from hypocenter.session.failed import Failed, plain_evidence
from hypocenter.session.mindspore.seams import Context, Investigator


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
