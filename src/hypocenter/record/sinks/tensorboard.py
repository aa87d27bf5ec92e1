"""TensorBoard: scalars of each step, histograms, findings as text, below RUN/tensorboard or `tensorboard=FOLDER`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hypocenter.nouns import Finding, Reading, StepRecord
from hypocenter.record.all_rows import AllRows
from hypocenter.record.aside import Aside
from hypocenter.record.catalogue import SinkStart, sink
from hypocenter.record.event_file import EventFile
from hypocenter.record.finding_text import markdown

FOLDER = "tensorboard"
BETWEEN_HISTOGRAMS_S = 10.0  # those of `modules` at each step would cost more than all else; the recording has them


@sink("tensorboard")
def tensorboard(start: SinkStart) -> Aside:
    """Open the folder of this rank: each rank is a run of TensorBoard."""
    below = Path(start.where) if start.where else Path(start.directory or ".", FOLDER)
    return Aside(TensorBoard(below / f"rank-{start.rank:05d}"))


class TensorBoard:
    """Writes an event file in the sink's thread."""

    def __init__(self, folder: Path) -> None:
        self._file = EventFile(folder)
        self._next_s = 0.0

    def write(self, readings: Sequence[Reading], step: StepRecord | None) -> None:
        """Write all numbers of a step, and histograms now and then."""
        if step is not None:
            self._file.step(step)
        rows = readings.rows if isinstance(readings, AllRows) else readings  # a norm has no histogram
        if time.monotonic() >= self._next_s and any(reading.summary.hist for reading in rows):
            self._file.readings(rows)
            self._next_s = time.monotonic() + BETWEEN_HISTOGRAMS_S

    def finding(self, finding: Finding) -> None:
        """Write the finding as a text at its step."""
        self._file.finding(finding, markdown(finding))

    def flush(self) -> None:
        """Hand over what was written, so that TensorBoard sees it."""
        self._file.flush()

    def close(self) -> None:
        """End the file."""
        self._file.close()
