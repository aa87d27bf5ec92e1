"""Which step, micro-batch and position in the step we are at. Steps and micro-batches count from 0."""

from __future__ import annotations


class Clock:
    """Counts micro-batches within a step, steps, and observations within a step.

    A *micro-batch* is what one `backward()` consumes. A *step* is one optimizer step under way: it ends when an
    optimizer steps (or an AMP scaler skips it). With several optimizers a step ends when one of them comes round again.
    However often an optimizer calls its closure (LBFGS), that is one step. Who lets an optimizer take the place of
    another one `forget`s that: the first update of the new one begins a step.
    """

    def __init__(self) -> None:
        self.microbatch = 0
        self.batch = 0  # micro-batches since the start of the run
        self.chunk: int | None = None  # micro-batch whose forward runs, where a schedule runs others' backwards between
        self.recording = False  # inside a training micro-batch: grad mode on, not evaluation
        self._first_chunk = 0  # micro-batch that the schedule under way counts from
        self._round = 0
        self._order = 0
        self._updating: int | None = None  # the step of the update that runs
        self._known: dict[int, int] = {}  # the round of an optimizer's first update, by its id
        self._stepped: set[int] = set()
        self._is_one_gone = False  # that has stepped in this round
        self.step = 0  # the optimizer step under way
        self.step_now = 0  # the same, and while an update runs the step that it belongs to

    @property
    def forward_microbatch(self) -> int:
        """The number of the micro-batch that a forward under way belongs to."""
        return self.microbatch if self.chunk is None else self.chunk

    def _count(self) -> None:
        """Work out the numbers of the step anew, after a change."""
        self.step = self._round + (bool(self._known) and self._stepped == self._known.keys())
        self.step_now = self.step if self._updating is None else self._updating

    def resume_at(self, step: int) -> None:
        """Continue with this step. To be called before the first update of a process that was started again."""
        self._round = step
        self._count()

    def next_order(self, n: int = 1) -> int:
        """Take `n` numbers in the order of execution within the step, and return the first of them."""
        self._order += n
        return self._order - n + 1

    def end_microbatch(self) -> None:
        """Count a micro-batch, as its backward has run."""
        self.microbatch += 1
        self.batch += 1

    def begin_chunk(self, chunk: int | None) -> None:
        """Begin the forward of a pipeline schedule's micro-batch `chunk`; None: that forward is over."""
        if chunk == 0:
            self._first_chunk = self.microbatch
        self.chunk = None if chunk is None else self._first_chunk + chunk

    def begin_update(self, optimizer_id: int) -> int:
        """Begin an optimizer's update, and return the number of the step that it belongs to."""
        if optimizer_id in self._stepped or (self._is_one_gone and optimizer_id not in self._known):
            self._round += 1
            self._stepped.clear()
            self._is_one_gone = False
        self._known.setdefault(optimizer_id, self._round)
        self._stepped.add(optimizer_id)
        self._updating = self._round
        self._count()
        return self._round

    def may_replace(self, optimizer_id: int) -> bool:
        """Return whether a backward has run for an update of an optimizer that is new, though others went round."""
        is_new = optimizer_id not in self._known and self.microbatch > 0
        return is_new and any(map(self.has_come_round, self._known))

    def has_come_round(self, optimizer_id: int) -> bool:
        """Return whether an optimizer has made an update in an earlier round."""
        return self._known.get(optimizer_id, self._round) < self._round

    def forget(self, optimizer_id: int) -> None:
        """Forget an optimizer that is gone: no round waits for it, and the next new one takes its place (or its id)."""
        self._is_one_gone = self._is_one_gone or optimizer_id in self._stepped
        self._known.pop(optimizer_id, None)
        self._stepped.discard(optimizer_id)
        self._count()

    def begin_evaluation(self) -> None:
        """Count micro-batches from 0 again: the closure of the update under way is called once more."""
        self.microbatch = self._first_chunk = 0

    def reopen(self, optimizer_id: int) -> None:
        """Let the step go on: the update that was expected of this optimizer has not been made."""
        self._stepped.discard(optimizer_id)
        self._count()

    def end_update(self) -> None:
        """End the update, made or skipped: what follows belongs to the next one."""
        self.begin_evaluation()
        self._updating = None
        self._order = 0
        self._count()
