"""What a rank recorded over all its steps, in columns: from it a rule can tell that it has nothing to find there."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from hypocenter.detect.batch_series import BatchSeries
from hypocenter.detect.columns import Ints
from hypocenter.detect.spikes import may_jump
from hypocenter.detect.step_columns import StepColumns


class RankSeries:
    """What columns tell of one rank.

    Args:
        records: its steps.
        bad_steps: those with a loss or a gradient that is not finite, among the rows.
        batches: what it was given.
    """

    def __init__(self, records: StepColumns, bad_steps: Ints, batches: BatchSeries) -> None:
        self.records = records
        self.batches = batches
        self._bad_steps = bad_steps

    @cached_property
    def may_jump(self) -> bool:
        """Whether loss or gradient norm may have jumped, as `spikes.Series` sees it."""
        records = self.records
        is_fine = ~records.is_bad & ~np.isin(records.steps, self._bad_steps)
        return any(may_jump(records.column(name)[is_fine & records.has(name)]) for name in ("loss", "grad_norm"))
