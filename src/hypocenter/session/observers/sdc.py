"""Hardware or software: on a schedule, or on a suspicious step, the same micro-batch is done again and compared.

On the schedule `sdc_check` the bits of each local gradient are taken while backward runs, before any reduction. Before
the update this rank does its micro-batches again; each op of one of them is compared with float64 on the CPU; and the
next rank that holds the same parameters does it once more on its own device (the council takes inputs and answers
there and back). On a suspicious step (loss or gradient not finite, or far above all before) a rank looks for itself
only: no other is asked to take part in something that it does not expect.

Rows: site `sdc`, phase comm (docs/format.md). The verdicts are made from them: HC341, HC342, HC343.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from hypocenter import schedule
from hypocenter.detect.local_rows import LOCAL, NORM, RECENT
from hypocenter.nouns import Reading, Source, Summary
from hypocenter.replay.engine import ReplayImpossible
from hypocenter.replay.triage.again import Again, Examined, computed
from hypocenter.replay.triage.bits import Bits, Difference, Print
from hypocenter.replay.triage.ops import OpReport, WrongOp
from hypocenter.replay.triage.ring import Ring
from hypocenter.session.check import Check
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.unwritten import unwritten_row
from hypocenter.tap import digest
from hypocenter.tap.clock import Clock
from hypocenter.tap.gradients import local, norms, to_host
from hypocenter.tap.op_context import OpPlace
from hypocenter.tap.tape import Microbatch

MAX_MICROBATCHES = 4  # of a step that are done again
MAX_SUSPICIONS = 8  # suspicious steps of a run that are looked into
FAR_OUT = 100.0  # times the largest gradient norm of the last HISTORY steps
HISTORY = 16  # steps
MIN_HISTORY = 3  # steps before anything is called far out
SITE = "sdc"
MAX_NAMES = 8  # parameters with other bits that a row names
MAX_OPS = 4  # wrong ops that are written down


class SdcCheck(Observer):
    """Replays micro-batches and writes down how their bits compare with the run's."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._due = schedule.parse(context.config.sdc_check)
        self._again = Again(context.replayer, context.names)
        self._ring = Ring(
            context.tape, context.replayer, context.names, self._again, context.council, context.config.agree_timeout_s
        )
        self._witness: dict[int, list[tuple[str, torch.Tensor, torch.Tensor]]] = {}
        self._hooks: list[Any] = []
        self._seen: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        self._norms: deque[float] = deque(maxlen=HISTORY)
        self._n_suspicions = 0
        self._confirm = False  # a suspicious step came before: does a healthy one come out the same again?
        self._was_far_out = False  # the gradients, before they were clipped
        self._done_step = -1
        self._has_warned = False

    # what the run computes

    def before_backward(self, roots: Sequence[torch.Tensor]) -> None:
        """Take the bits of this micro-batch's gradients as they come, if this step is to be checked."""
        if (
            self._hooks
            or len(self._witness) >= MAX_MICROBATCHES
            or not (self._due(self.context.clock.step) or self._confirm)
        ):
            return
        self._seen = []
        for name, parameter in self.context.names.parameters():
            if parameter.requires_grad and parameter.is_leaf:
                self._hooks.append(parameter.register_hook(self._taker(name, parameter)))

    def _taker(self, name: str, parameter: Any) -> Any:
        def take(grad: torch.Tensor) -> None:
            values = local(grad)
            is_dummy = getattr(parameter, "grad_added_to_main_grad", False)  # a fused kernel keeps the gradient itself
            if values is not None and not is_dummy:
                found = digest.digests([values])[0]
                if found is not None:
                    self._seen.append((name, found, norms([values])[0]))

        return take

    def after_backward(self) -> None:
        """Take the hooks off, and keep what they saw by micro-batch."""
        if self._hooks:
            for hook in self._hooks:
                hook.remove()
            self._hooks = []
            self._witness[self.context.clock.microbatch] = self._seen
            self._seen = []

    def seen_before_clip(self, parameters: Sequence[torch.Tensor], check: Check) -> None:
        """Note if the gradients are suspiciously large, as clipping will hide that."""
        self._was_far_out = self._was_far_out or self._is_suspicious(check)

    # what comes of doing it again

    def before_update(self, update: Update) -> None:
        """Replay the step, if it is to be checked or looks wrong."""
        witness, self._witness = self._witness, {}
        was_far_out, self._was_far_out = self._was_far_out, False
        if update.step == self._done_step or not update.microbatches:
            return
        self._done_step = update.step
        is_due, confirm, self._confirm = self._due(update.step), self._confirm, False
        why = self._suspicion(update, was_far_out=was_far_out)
        if not why and update.rows:
            why = self._local_suspicion(update)
        if not is_due and not why and not confirm:
            return
        self._confirm = bool(why)
        self._n_suspicions += bool(why)
        self._check(update, witness, self._local(update), why or ("schedule" if is_due else "confirm"), ask=is_due)

    def _check(self, update: Update, witness: Any, grads: Bits | None, why: str, *, ask: bool) -> None:
        microbatches = update.microbatches[:MAX_MICROBATCHES]
        chosen = microbatches[update.step % len(microbatches)]
        is_fine = update.check.loss_finite and not update.check.bad_params
        trade = self._ring.send(update.step, chosen, takes_part=is_fine) if ask else None
        for microbatch in microbatches:
            rows = Rows(self.context.clock, update.step, microbatch.number)
            run = self._run_bits(microbatch, witness.get(microbatch.number), grads)
            is_chosen = microbatch is chosen
            found: Examined | None = None
            try:
                found = self._again.examine(microbatch, run, check_ops=is_chosen, log=is_chosen and trade is not None)
                rows.examined(found, why)
                if found.unwritten is not None:
                    self.rows.append(unwritten_row(found.unwritten, update.step, self.context.clock.next_order()))
            except ReplayImpossible as error:
                rows.add("impossible", names=(why, str(error)))
                if ask and not self._has_warned:
                    self._has_warned = True
                    self.context.warn(f"step {update.step} could not be checked by doing it again (sdc_check): {error}")
            except Exception as error:  # the user's own code runs here: anything may come out of it
                rows.add("impossible", names=(why, f"the replay raised {type(error).__name__}"))
            if is_chosen and trade is not None:
                self._ring.compare(trade, found, rows)
            if found is not None:
                self._insist(found, microbatch)
                rows.repeated("replays", found.distances)
            self.rows += rows.made

    def _insist(self, found: Examined, microbatch: Microbatch) -> None:
        with contextlib.suppress(Exception):  # the user's own code runs here; what was done so far counts
            self._again.insist(found, microbatch)

    def _run_bits(self, microbatch: Microbatch, seen: Any, grads: Bits | None) -> Bits | None:
        """Return the bits of losses and gradients that the run computed, as far as they are known."""
        prints: dict[str, Print] = {}
        if len(microbatch.values) == len(microbatch.roots):
            prints.update(computed(list(microbatch.values), []).prints)
        if seen:
            numbers, sizes = digest.to_host([d for _, d, _ in seen]), to_host([n for _, _, n in seen])
            once = [name for name, _, _ in seen]
            prints.update(
                {
                    name: Print(digest=number, norm=size)
                    for (name, _, _), number, size in zip(seen, numbers, sizes, strict=True)
                    if number is not None and once.count(name) == 1  # in parts, as under reentrant checkpointing
                }
            )
        elif grads is not None:
            prints.update(grads.prints)
        return Bits(prints=prints) if prints else None

    # suspicion

    def _suspicion(self, update: Update, *, was_far_out: bool) -> str:
        check = update.check
        norm = check.total_norm
        why = ""
        if not check.loss_finite:
            why = "the loss was not finite"
        elif check.bad_params:
            why = "a gradient was not finite"
        elif self._is_suspicious(check) or was_far_out:
            why = f"the gradients were {norm / max(self._norms):.3g} times as large as in the steps before"
        if math.isfinite(norm) and not why:
            self._norms.append(norm)
        return why if why and self._may_look(update) else ""

    def _may_look(self, update: Update) -> bool:
        is_scaling = update.scaled is not None and update.check.loss_finite  # it finds its scale by overflowing
        return self.context.config.replay and not is_scaling and self._n_suspicions < MAX_SUSPICIONS

    def _local_suspicion(self, update: Update) -> str:
        """Say what is suspicious about a local gradient before any reduction: not finite, or far above the last."""
        for row in update.rows:  # a generator is a call for each, and this runs at each step
            if row.port == LOCAL and (row.call == RECENT or row.summary.n_nonfinite) and self._may_look(update):
                what = "not finite" if row.summary.n_nonfinite else "far above those of the steps before"
                return f"the local gradient of {row.site} was {what}"
        return ""

    def _local(self, update: Update) -> Bits | None:
        """Return norms of local gradients before the reduction, if another observer has written them down.

        What is in `.grad` at an update would not do: programs scale it, add noise to it, clip it by hand.
        """
        if len(update.microbatches) != 1 or update.scaled is not None or self._is_changed_by_hooks():
            return None
        rows = [r for r in update.rows if r.port == LOCAL and r.call == NORM and r.step == update.step]
        prints = {r.site: Print(digest=r.digest, norm=_norm(r)) for r in rows}
        return Bits(prints=prints) if prints and len(prints) == len(rows) else None

    def _is_changed_by_hooks(self) -> bool:
        """Return whether hooks of the program's see gradients after they accumulate: a replay does not call them."""
        tables = (getattr(p, "_post_accumulate_grad_hooks", None) or {} for _, p in self.context.names.parameters())
        hooks = (getattr(hook, "__func__", hook) for table in tables for hook in table.values())
        return any(not getattr(hook, "__module__", "").startswith("hypocenter.") for hook in hooks)

    def _is_suspicious(self, check: Check) -> bool:
        if not check.loss_finite or check.bad_params:
            return True
        largest = max(self._norms, default=0.0)  # 0: nothing has been trained so far, which says nothing of the future
        return largest > 0.0 and len(self._norms) >= MIN_HISTORY and check.total_norm > FAR_OUT * largest


def _norm(row: Reading) -> float:
    return math.inf if row.summary.n_nonfinite else math.sqrt(row.summary.sumsq)


class Rows:
    """Makes the rows of one micro-batch of one step."""

    def __init__(self, clock: Clock, step: int, microbatch: int) -> None:
        self._clock, self._step, self._microbatch = clock, step, microbatch
        self.made: list[Reading] = []

    def add(
        self,
        port: str,
        summary: Summary | None = None,
        *,
        names: Sequence[str] = (),
        digest: int | None = None,
        op: str = "",
        module: str = "",
        source: Source | None = None,
    ) -> None:
        """Add one row."""
        self.made.append(
            Reading(
                step=self._step, microbatch=self._microbatch, phase="comm", site=SITE, port=port,
                order=self._clock.next_order(), summary=summary or Summary(), names=tuple(names), digest=digest,
                op=op, module=module, source=source,
            )
        )  # fmt: skip

    def examined(self, found: Examined, why: str) -> None:
        """Add rows of how this device's replay of its own micro-batch compares with the run.

        Args:
            why: it was done again: "schedule", or what looked wrong.
        """
        if found.run is not None:
            self.add("run", names=(why,), digest=found.run.digest)
        else:
            self.add("run", names=(why,))
        self.difference("again[0]", found.from_run, found.again.digest)
        if found.unlike:
            self.add("unlike", names=(found.unlike,))
        self.ops("ops", found.ops)
        for number, wrong in enumerate(found.ops.wrong[:MAX_OPS]):
            self._wrong(f"op[{number}]", wrong)
        if found.state:
            self.add("state", names=found.state[:MAX_NAMES])
        if found.n_bad_inputs:
            self.add("batch", Summary(n=found.n_bad_inputs, n_nan=found.n_bad_inputs))

    def repeated(self, port: str, distances: Sequence[float]) -> None:
        """Add a row of how far each further replay was from the first."""
        if distances:
            self.add(port, summary_of(distances))

    def difference(self, port: str, found: Difference, digest: int, *, by: str = "") -> None:
        """Add a row of how bits differ: relative differences of norms, over parameters, and the names of these."""
        names = found.names[:MAX_NAMES]
        self.add(port, summary_of(found.relative), names=(by, *names) if by else names, digest=digest)

    def ops(self, port: str, report: OpReport) -> None:
        """Add a row of how many ops agree with float64 (0), do not (1), or were not judged (NaN)."""
        self.add(port, counts(report.n_checked, len(report.wrong), report.n_unknown + report.n_late))

    def counted(self, port: str, n_checked: int, n_wrong: int) -> None:
        """Add a row of how many of a neighbour's ops were checked and wrong."""
        self.add(port, counts(n_checked, n_wrong, 0))

    def parting(self, place: OpPlace | None, op: str, here: int, there: int) -> None:
        """Add rows of where a neighbour with the same inputs came to other bits, and which of the two varies."""
        source = place.source() if place is not None else None
        self.add("parting", names=(place.site if place is not None else "",), op=op, source=source)
        self.add("parting.here", summary_of([float(here)]))
        self.add("parting.there", summary_of([float(there)]))

    def _wrong(self, port: str, wrong: WrongOp) -> None:
        place = wrong.place
        self.add(
            port, summary_of([wrong.got]), names=(place.site, place.phase, str(list(wrong.index)), str(wrong.n_wrong)),
            op=wrong.op, module=place.module, source=place.source(),
        )  # fmt: skip
        self.add(f"{port}.float64", summary_of([wrong.expected]))
        self.add(f"{port}.bound", summary_of([wrong.bound]))


def counts(n_checked: int, n_wrong: int, n_unknown: int) -> Summary:
    """Return a summary of ops as numbers: 0 right, 1 wrong, NaN not judged."""
    n_right = max(0, n_checked - n_wrong)
    return Summary(
        n=n_checked + n_unknown, n_nan=n_unknown, n_hist=n_checked + n_unknown, n_zero=n_right,
        min=0.0 if n_right else 1.0, max=1.0 if n_wrong else 0.0, absmax=1.0 if n_wrong else 0.0,
        sum=float(n_wrong), sumsq=float(n_wrong), absmin=1.0 if n_wrong else None,
    )  # fmt: skip


def summary_of(values: Sequence[float]) -> Summary:
    """Return the Summary of some Python numbers."""
    finite = [v for v in values if math.isfinite(v)]
    some: dict[str, Any] = {}
    if finite:
        some = {
            "min": min(finite), "max": max(finite), "absmax": max(map(abs, finite)),
            "absmin": min((abs(v) for v in finite if v), default=None),
        }  # fmt: skip
    squares = [v * v for v in finite if abs(v) < 1e150]  # a flipped bit may leave any number
    return Summary(
        n=len(values),
        n_hist=len(values),
        n_nan=sum(math.isnan(v) for v in values),
        n_posinf=sum(v == math.inf for v in values),
        n_neginf=sum(v == -math.inf for v in values),
        n_zero=sum(v == 0.0 for v in values),
        sum=math.fsum(v for v in finite if abs(v) < 1e300),
        sumsq=math.fsum(squares),
        **some,
    )
