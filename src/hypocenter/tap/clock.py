"""Which step, micro-batch and position in the step we are at. Steps and micro-batches count from 0."""

from __future__ import annotations


class Clock:
    """Counts micro-batches within a step, steps, and observations within a step.

    A *micro-batch* is what one `backward()` consumes. A *step* is one optimizer step under way: it ends when an
    optimizer steps (or an AMP scaler skips it). With several optimizers a step ends when one of them comes round again.
    """

    def __init__(self) -> None:
        self.microbatch = 0
        self.batch = 0  # micro-batches since the start of the run
        self.chunk: int | None = None  # micro-batch whose forward runs, where a schedule runs others' backwards between
        self.recording = False  # inside a training micro-batch: grad mode on, not evaluation
        self._first_chunk = 0  # micro-batch that the schedule under way counts from
        self._round = 0
        self._order = 0
        self._known: set[int] = set()
        self._stepped: set[int] = set()

    @property
    def forward_microbatch(self) -> int:
        """The micro-batch that what a forward computes now belongs to."""
        return self.microbatch if self.chunk is None else self.chunk

    @property
    def step(self) -> int:
        """The optimizer step under way."""
        return self._round + (self._stepped == self._known and bool(self._known))

    def resume_at(self, step: int) -> None:
        """The step under way is this one. To be called before the first update of a process that was started again."""
        self._round = step

    def next_order(self) -> int:
        """Execution order within the step."""
        self._order += 1
        return self._order

    def end_microbatch(self) -> None:
        """A backward has run."""
        self.microbatch += 1
        self.batch += 1

    def begin_chunk(self, chunk: int | None) -> None:
        """A schedule (of a pipeline) runs the forward of its micro-batch `chunk`; None: that forward is over."""
        if chunk == 0:
            self._first_chunk = self.microbatch
        self.chunk = None if chunk is None else self._first_chunk + chunk

    def begin_update(self, optimizer_id: int) -> int:
        """An optimizer is about to update: the number of the step that it belongs to."""
        if optimizer_id in self._stepped:
            self._round += 1
            self._stepped.clear()
        self._known.add(optimizer_id)
        self._stepped.add(optimizer_id)
        return self._round

    def end_update(self) -> None:
        """The update is done (or was skipped): what follows belongs to the next one."""
        self.microbatch = self._first_chunk = 0
        self._order = 0
