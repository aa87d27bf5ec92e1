"""`run --audit`: is what the optimizer is about to use the sum of what its micro-batches give? For HC232.

At a due step each micro-batch is done again. Whatever one factor does to all gradients (the loss scale, a mean, a clip
to a norm) is the same for every parameter; so each gradient that is used must be the sum of those that the replays
give, times the factor of all. A parameter whose gradient is something else is looked into: is it missing, has it
another factor, is one micro-batch left out or counted twice, is the gradient of the step before still in it? The factor
of all must be 1, one over the loss scale, or what brings the norm to that of earlier clips.

In a job of several ranks each rank knows only what its own micro-batches give. It writes sketches of that and of what
is used; whether they add up is asked where the recordings of all ranks are read (HC308).
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hypocenter.config import Config
from hypocenter.detect import law_rows as law
from hypocenter.nouns import Reading, Summary, replace
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.jointly import agree
from hypocenter.session.check import Check
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.calibration import must_repeat
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.sampled import sample
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.free_memory import free_bytes, peak_bytes
from hypocenter.tap.gradients import local, norms, to_host

ELEMENTS = 4096  # of a gradient that is looked into
STAYS = 2  # audited steps in which a parameter balanced, before one in which it does not
KEPT_AT_MOST = 16  # micro-batches that are told apart
SPARE = 1.25  # times what an audit needs must be free, by its own count
TOLERANCE = 1e-3  # relative, of a norm; and at least _ROUNDINGS of the format
_ROUNDINGS = 32  # units in the last place: sums of micro-batches in another order


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One parameter's gradient, as it is used and as the replays give it.

    Attributes:
        used: square of the norm of what is used; 0 of none.
        made: of the sum of what the replays give.
        dot: their scalar product.
        tolerance: relative difference of norms that rounding may make.
    """

    used: float
    made: float
    dot: float
    tolerance: float

    @property
    def factor(self) -> float:
        """What is used over what was made, where they point the same way."""
        return self.dot / self.made if self.made > 0 else 1.0

    @property
    def is_multiple(self) -> bool:
        """Whether one is a multiple of the other."""
        rest = self.used - self.dot * self.factor  # square of the norm of what is not a multiple
        return rest <= self.tolerance**2 * self.used

    def has(self, factor: float) -> bool:
        """Whether it is made times that."""
        return self.is_multiple and abs(self.factor - factor) <= self.tolerance * abs(factor)


def common_factor(entries: Sequence[Entry]) -> float | None:
    """The factor of most of the gradients, each counted once; None where there is none."""
    factors = [entry.factor for entry in entries if entry.made > 0 and entry.used > 0 and entry.is_multiple]
    if not factors:
        return None
    usual = statistics.median_low(factors)
    n_agree = sum(entry.has(usual) for entry in entries if entry.made > 0)
    return usual if 2 * n_agree > sum(entry.made > 0 for entry in entries) else None


class Audit(Observer):
    """Writes a row for each audited step, and one for each gradient that is not what its micro-batches give."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._audits = context.audits
        self._n_balanced: dict[int, int] = {}  # by id of a parameter: audited steps in a row
        self._before: dict[int, Tensor] = {}  # the gradient that was used in the step before, a sample
        self._n_explained = self._n_consumed = 0  # audited steps in a row
        self._n_microbatches = 0  # of the last audited step
        self._clipped: Sequence[Tensor] = ()  # in this step
        self._clipped_to = 0.0  # norm of their gradients after the last clip that was seen to act, scale taken out
        self._n_clips = 0  # in a row that gave this norm: a threshold may also follow the gradients
        self._numbers: dict[int, int] = {}  # of micro-batches of the last update, by its first parameter
        self._is_asked_for = context.config.audit != Config().audit
        self._n_given_up, self._has_warned = 0, False

    def before_clip(self, parameters: Sequence[Tensor], check: Check) -> None:
        """What comes may be brought to a norm."""
        self._clipped = parameters

    def before_update(self, update: Update) -> None:
        """The step is complete, and the parameters are still those that it started from."""
        can_be = self._has_usual_number(update) and bool(update.microbatches) and update.check.is_finite
        council = self.context.council
        is_together = council.waits and council.meets_at(update.step)
        if self._audits.is_due_everywhere(update.step) if is_together else self._audits.is_due(update.step) and can_be:
            try:
                with torch.no_grad(), self._audits.spending():
                    if is_together:
                        self._sketch_together(update, can_be=can_be)
                    elif self.context.rank()[1] == 1:
                        self._audit(update)
                    else:
                        self._sketch(update)
            except ReplayImpossible as why:
                self._give_up(update.step, str(why))
            except torch.OutOfMemoryError:
                self._audits.stop()
                self._give_up(update.step, "the device has too little memory; no other step will be tried")
        self._clipped = ()
        self._before.clear()
        if self._audits.is_due(update.step + 1):
            with self._audits.spending():
                self._before = {
                    id(p): g.clone() for p, grad in update.gradients if (g := sample(grad, ELEMENTS)) is not None
                }

    def _has_usual_number(self, update: Update) -> bool:
        """Whether there are as many micro-batches as at the update before: some programs leave out a bad update.

        They throw its gradients away, and nothing but their number tells such micro-batches from those that count.
        """
        key, number = (id(update.parameters[0]) if update.parameters else 0), len(update.microbatches)
        before, self._numbers[key] = self._numbers.get(key, number), number
        return number <= before

    def _give_up(self, step: int, why: str) -> None:
        """By default an audit is a bonus: without one nothing is said."""
        self._n_given_up += 1
        is_early = self._n_given_up == 1 and self.context.rank()[1] > 1  # the ranks may still be finding together
        if self._is_asked_for and not self._has_warned and not is_early:
            self._has_warned = True
            self.context.warn(f"step {step} could not be audited: {why}")

    def _replayed(
        self, update: Update, parameters: Sequence[Tensor], each: Callable[[int, Tensor], None]
    ) -> list[Tensor | None]:
        """What the micro-batches give for each of these parameters, added up in float64; None of what gets nothing.

        Args:
            each: told of the gradient of one micro-batch: number of the parameter, values.
        """
        if why := _why_not(parameters):
            raise ReplayImpossible(why)
        sums: list[Tensor | None] = [None] * len(parameters)
        for microbatch in update.microbatches:
            with torch.enable_grad(), _without_hooks(parameters):
                replayed = self.context.replayer.run(microbatch, parameters, must_leave_no_trace=True)
            must_repeat(microbatch, replayed)
            for index, grad in enumerate(replayed.grads):
                values = None if grad is None else local(grad)
                if values is None:
                    continue
                known = sums[index]
                sums[index] = in_float64(values).clone() if known is None else known.add_(in_float64(values))
                each(index, values)
        return sums

    def _sketch_together(self, update: Update, *, can_be: bool) -> None:
        """The same of a model that computes on all its ranks together: all of them do the step again.

        Args:
            can_be: whether this rank has anything to do again. If not, it says so to the others.
        """
        table = self.context.council.table()
        groups = table.groups()
        if groups is None:
            return
        replayer = self.context.replayer
        try:
            with replayer.together(groups) as whole:
                why = "" if can_be else "this step is not like those before"
                why = why or ("its parameters are made whole only for a moment (FSDP1, ZeRO stage 3)" if whole else "")
                why = why or next((why for m in update.microbatches if (why := replayer.why_not(m))), "")
                parameters = self._trained_here(update)
                why = why or _why_not(parameters)
                seats = replace(table, groups=lambda: groups)
                agreement = agree(seats, whole, len(update.microbatches), len(parameters), why)
                if agreement.why_not:
                    raise ReplayImpossible(agreement.why_not)
                problem = self._problem_of(update)
                if problem:
                    groups.close()  # who waits for this rank in one of them is told at once
                said = table.most([int(bool(problem))])
                if said is None or said[0]:
                    self._audits.stop()  # on all ranks: none may come to an audit that another one does not come to
                    raise ReplayImpossible(problem or "another rank could not do it again; no other step will be tried")
        finally:
            groups.close()  # if this rank has failed, those who wait for it are told at once

    def _problem_of(self, update: Update) -> str:
        """Why this rank could not do its side; '' if it could."""
        try:
            self._sketch(update)
        except ReplayImpossible as why:
            return str(why)
        except Exception as error:  # the user's own code runs here: anything may come out of it
            return f"the replay raised {type(error).__name__}: {str(error)[:200]}"
        return ""

    def _trained_here(self, update: Update) -> list[Tensor]:
        """Parameters that this optimizer or none of this rank holds."""
        elsewhere = {
            id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]
        }
        elsewhere -= {id(p) for p in update.parameters}
        return [p for _, p in self.context.names.parameters() if p.requires_grad and id(p) not in elsewhere]

    def _sketch(self, update: Update) -> None:
        """This rank's side of the law."""
        named = self._trained_here(update)
        sums = self._replayed(update, named, lambda *_: None)
        used = {id(p): local(grad) for p, grad in update.gradients}
        scaled = update.scaled
        scale = (scaled.state.scale or 1.0) if scaled is not None and scaled.is_unscaled else 1.0
        pairs = [(p, law.MADE, None if total is None else total / scale) for p, total in zip(named, sums, strict=True)]
        own = {id(p) for p in update.parameters}
        for p, total in zip(named, sums, strict=True):
            nothing = torch.zeros_like(total) if total is not None and id(p) in own else None
            pairs.append((p, law.USED, used.get(id(p), nothing)))
        held = [(p, port, values) for p, port, values in pairs if values is not None]
        numbers = _to_host([torch.cat([_sketch(values), _print(p)]) for p, _, values in held])
        order = self.context.clock.next_order
        self.rows += [
            Reading(
                step=update.step, microbatch=0, phase="grad", site=self.context.label(p), port=port, order=order(),
                dtype=str(p.dtype).removeprefix("torch."), shape=tuple(p.shape),
                summary=Summary(n=p.numel(), sum=found[-1], sketch=tuple(found[:-1])),
            )
            for (p, port, _), found in zip(held, numbers, strict=True)
        ]  # fmt: skip

    def _audit(self, update: Update) -> None:
        own = {id(p) for p in update.parameters}
        named = [p for _, p in self.context.names.parameters() if p.requires_grad and id(p) in own]
        samples: list[list[Tensor]] = [[] for _ in named]  # of each micro-batch's gradient

        def keep(index: int, values: Tensor) -> None:
            if (part := sample(values, ELEMENTS)) is not None:
                samples[index].append(part.clone())

        sums = self._replayed(update, named, keep)
        used = {id(p): local(grad) for p, grad in update.gradients}
        entries = _entries([(used.get(id(p)), total) for p, total in zip(named, sums, strict=True)])
        usual = common_factor(list(entries.values()))
        order, n_balanced = self.context.clock.next_order, 0
        for index, parameter in enumerate(named):
            entry = entries.get(index)
            if entry is None:
                continue
            n_before = self._n_balanced.get(id(parameter), 0)
            if entry.made == entry.used == 0 or (usual is not None and entry.has(usual)):
                self._n_balanced[id(parameter)] = n_before + 1
                n_balanced += 1
                continue
            self._n_balanced[id(parameter)] = -(1 << 30)  # from here on it is known
            kind, number = self._kind(
                parameter, used.get(id(parameter)), samples[index], entry, n_microbatches=len(update.microbatches)
            )
            row = number_row(
                self.context.label(parameter), law.UNBALANCED, update.step, order(), entry.factor / (usual or 1.0),
                module=kind, call=max(0, n_before),
            )  # fmt: skip
            # of updates by hand it takes some steps to know where one ends
            is_known = n_before >= 0 and isinstance(update.optimizer, torch.optim.Optimizer)
            if n_before >= STAYS or (kind == law.STEP_BEFORE and is_known):
                self.rows.append(replace(row, op=number))
        if usual is not None:
            self._explain(usual, update, [entries[i] for i in entries])
        self._look_for_lost_calls(update)
        looked = len(entries), n_balanced
        self.rows.append(count_row(law.SITE, law.BALANCED, update.step, order(), looked, module=law.GRADIENT))

    def _explain(self, usual: float, update: Update, entries: Sequence[Entry]) -> None:
        """Where the factor of all comes from."""
        scaled = update.scaled
        expected = 1.0 / (scaled.state.scale or 1.0) if scaled is not None and scaled.is_unscaled else 1.0
        tolerance = max(entry.tolerance for entry in entries)
        is_explained = abs(usual / expected - 1.0) <= tolerance
        if not is_explained and self._clipped and usual < expected:
            held = [g for p in self._clipped if p.grad is not None and (g := local(p.grad)) is not None]
            left = 1.0 if scaled is None or scaled.is_unscaled else scaled.state.scale or 1.0
            norm = math.hypot(*to_host(norms(held))) / left
            is_usual = abs(norm - self._clipped_to) <= tolerance * self._clipped_to
            is_explained = is_usual or self._n_clips < STAYS
            self._n_clips, self._clipped_to = self._n_clips + 1 if is_usual else 1, norm
        if not is_explained and self._n_explained >= STAYS:
            row = number_row(
                law.SITE, law.UNBALANCED, update.step, self.context.clock.next_order(), usual / expected,
                module=law.FACTOR, call=self._n_explained,
            )  # fmt: skip
            self.rows.append(row)
        self._n_explained = self._n_explained + 1 if is_explained else -(1 << 30)

    def _look_for_lost_calls(self, update: Update) -> None:
        """Calls of a model in training that no backward of this step went through."""
        tape = self.context.tape
        went_through = {position for each in update.microbatches for position, _ in tape.slice(each)}
        calls = [
            event.module
            for position, event in enumerate(tape.events)
            if event.module is not None and event.training and event.ambient.grad and position not in went_through
        ]
        n_before, self._n_microbatches = self._n_microbatches, len(update.microbatches)
        if calls and self._n_consumed >= STAYS and self._n_microbatches < n_before:
            name = self.context.names.module_name(calls[0]) or type(calls[0]).__name__
            order = self.context.clock.next_order()
            self.rows.append(
                number_row(
                    law.SITE, law.NOT_CONSUMED, update.step, order, len(calls), module=name, call=self._n_consumed
                )
            )
        self._n_consumed = -(1 << 30) if calls else self._n_consumed + 1

    def _kind(
        self, parameter: Tensor, used: Tensor | None, parts: Sequence[Tensor], entry: Entry, *, n_microbatches: int
    ) -> tuple[str, str]:
        """How it is off, and the number of the micro-batch if it is one."""
        if used is None or entry.used == 0:
            return law.MISSING, ""
        if entry.is_multiple:
            return law.FACTOR, ""
        target, before = sample(used, ELEMENTS), self._before.get(id(parameter))
        if target is None or len(parts) != n_microbatches or len(parts) > KEPT_AT_MOST:
            return law.OTHER, ""
        columns = [*parts] if before is None else [*parts, before]
        weights = _weights(columns, target, entry.tolerance)
        if weights is None:
            return law.OTHER, ""
        of_parts = weights[: len(parts)]
        typical = statistics.median(of_parts)
        if before is not None and abs(weights[-1]) > 0.01 * abs(typical):
            return law.STEP_BEFORE, ""
        off = [i for i, weight in enumerate(of_parts) if abs(weight - typical) > 0.01 * abs(typical)]
        return (law.MICROBATCH, str(off[0])) if len(off) == 1 else (law.OTHER, "")


def _why_not(parameters: Sequence[Tensor]) -> str:
    """Why nothing should be done again that needs gradients of all these, or ''."""
    if any(getattr(p, "grad_added_to_main_grad", False) for p in parameters):
        return "backward itself adds gradients to main_grad (gradient_accumulation_fusion)"
    for device in {p.device for p in parameters}:
        # a gradient in the parameter's own format, and a sum in float64
        needed = sum(p.numel() * (p.element_size() + 8) for p in parameters if p.device == device) + peak_bytes(device)
        if SPARE * needed > (free := free_bytes(device)):
            return f"it takes about {needed >> 20} MiB on {device}, of which {free >> 20} MiB are free"
    return ""


def _sketch(values: Tensor) -> Tensor:
    """Sums of a sample, each element with a sign that depends on its place alone: [SKETCH], float64.

    Linear: the sketches of parts of a sum add up to that of the sum.
    """
    part = values.detach().reshape(-1)
    part = in_float64(part[:: -(-part.numel() // ELEMENTS)])
    generator = torch.Generator().manual_seed(part.numel())
    signs = torch.randint(0, 2, (part.numel(),), generator=generator).to(part.device) * 2 - 1
    padded = torch.nn.functional.pad(part * signs, (0, -part.numel() % law.SKETCH))
    return padded.reshape(law.SKETCH, -1).sum(1)


def _print(parameter: Tensor) -> Tensor:
    """One number that tells the values of a parameter from those of another: [1], float64."""
    values = sample(parameter.detach(), ELEMENTS)
    return torch.zeros(1, dtype=torch.float64) if values is None else in_float64(values).sum().reshape(1)


@contextlib.contextmanager
def _without_hooks(parameters: Sequence[Tensor]) -> Generator[None, None, None]:
    """Hooks of the program on its parameters do not change the gradients in here: what they do is to be found."""
    own = [(hooks, dict(hooks)) for p in parameters if (hooks := getattr(p, "_backward_hooks", None))]
    for hooks, _ in own:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in own:
            hooks.update(before)


def _weights(columns: Sequence[Tensor], target: Tensor, tolerance: float) -> list[float] | None:
    """How much of each column is in the target, least squares; None where that does not make it up."""
    if target.numel() <= len(columns):
        return None
    matrix = torch.stack([column.reshape(-1).cpu().double() for column in columns], dim=1)  # [n elements, n columns]
    right = target.reshape(-1).cpu().double()
    found = torch.linalg.lstsq(matrix, right[:, None]).solution[:, 0]
    rest = torch.linalg.vector_norm(matrix @ found - right)
    return found.tolist() if rest <= tolerance * torch.linalg.vector_norm(right) else None


def _entries(pairs: Sequence[tuple[Tensor | None, Tensor | None]]) -> dict[int, Entry]:
    """By position, of (used, made); one transfer for all. What nothing was made for is left out."""
    numbers: list[Tensor] = []
    where: list[tuple[int, float]] = []
    for index, (used, made) in enumerate(pairs):
        if made is None or (used is not None and used.shape != made.shape):
            continue
        given = torch.zeros_like(made) if used is None else in_float64(used)
        numbers.append(torch.stack([(given * given).sum(), (made * made).sum(), (given * made).sum()]))
        where.append((index, TOLERANCE if used is None else _tolerance(used)))
    found = _to_host(numbers)
    return {
        index: Entry(used=used, made=made, dot=dot, tolerance=tolerance)
        for (index, tolerance), (used, made, dot) in zip(where, found, strict=True)
    }


def _to_host(numbers: Sequence[Tensor]) -> list[list[float]]:
    """Vectors of equal length in float64: one transfer for each device."""
    found: dict[int, list[float]] = {}
    for device in {each.device for each in numbers}:
        here = [i for i, each in enumerate(numbers) if each.device == device]
        found.update(zip(here, torch.stack([numbers[i] for i in here]).tolist(), strict=True))
    return [found[i] for i in range(len(numbers))]


def _tolerance(used: Tensor) -> float:
    return max(TOLERANCE, _ROUNDINGS * torch.finfo(used.dtype).eps)
