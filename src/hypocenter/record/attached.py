"""Sinks that attach to a run of another tool which the program itself has started, once there is one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.aside import Aside
from hypocenter.record.catalogue import SinkStart


class Attached(ABC):
    """Hands all it is given to the program's run; a rank without one of its own is left alone.

    Args:
        start: what the sink was told when it was opened.
    """

    to_begin: str
    """What the program calls to start a run: `wandb.init`."""

    def __init__(self, start: SinkStart) -> None:
        self._rank, self._was_attached = start.rank, False
        self._aside: Aside | None = None

    @abstractmethod
    def attached(self) -> Aside | None:
        """Return what sends to the program's run; None while there is none. Called at each step until there is."""

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Look for the program's run, then have the step sent."""
        if self._aside is None:
            self._aside = self.attached()
            self._was_attached |= self._aside is not None
        if self._aside is not None:
            self._aside.write(readings, step)

    def finding(self, finding: Finding) -> None:
        """Have the finding sent, if there is a run."""
        if self._aside is not None:
            self._aside.finding(finding)

    def close(self) -> None:
        """Have what is left sent. The run stays open: it is the program's.

        Raises:
            LookupError: the program never started a run.
        """
        aside, self._aside = self._aside, None
        if aside is not None:
            aside.close()
        elif not self._was_attached and self._rank == 0:
            raise LookupError(f"the program has started no run: call {self.to_begin} before training")
