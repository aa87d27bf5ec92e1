"""Keeps everything in memory: for notebooks and tests."""

from __future__ import annotations

from collections.abc import Sequence

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.catalogue import SinkStart, sink


@sink("memory")
class Memory:
    """Keeps everything in lists that grow: `readings`, `steps`, `findings`."""

    def __init__(self, start: SinkStart | None = None) -> None:
        self.rank = start.rank if start else 0
        self.readings: list[Reading] = []
        self.steps: list[StepRecord] = []
        self.findings: list[Finding] = []

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Keep one step."""
        self.readings.extend(readings)
        if step is not None:
            self.steps.append(step)

    def finding(self, finding: Finding) -> None:
        """Keep one finding."""
        self.findings.append(finding)

    def close(self) -> None:
        """Do nothing: the lists stay."""
