"""The audit of steps of torch: replays, and in jobs of several ranks sketches of what each rank gives and uses.

In a job of several ranks each rank knows only what its own micro-batches give. It writes sketches of that and of what
is used; whether they add up is asked where the recordings of all ranks are read (HC308).
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from hypocenter import schedule
from hypocenter.detect import law_rows as law
from hypocenter.nouns import Reading, Summary, replace
from hypocenter.replay.engine import Replayed
from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.jointly import agree
from hypocenter.session.audits import uncollected
from hypocenter.session.observer import Context, Update
from hypocenter.session.observers import audit
from hypocenter.session.observers.audit import ELEMENTS, KEPT_AT_MOST, Balance, Entries, tolerance_of
from hypocenter.session.observers.calibration import must_repeat
from hypocenter.session.observers.columns import Block, blocks
from hypocenter.session.observers.grid import name_of
from hypocenter.session.observers.repeats import UnlikeTheRun
from hypocenter.session.observers.sampled import sample
from hypocenter.session.observers.ways import Ways
from hypocenter.session.unwritten import unwritten_row
from hypocenter.session.without_hooks import without_hooks
from hypocenter.summary.reducers.torch_float64 import in_float64
from hypocenter.tap.before_reduction.ddp import hooks_of
from hypocenter.tap.dispatch import Together
from hypocenter.tap.flow import Flow, GraphShape, paths
from hypocenter.tap.free_memory import why_no_room
from hypocenter.tap.gradients import ROW, are_plain, local, norms, to_host
from hypocenter.tap.loss_divisors import factor_of, n_divisions
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.poison import Poison
from hypocenter.tap.tape import Microbatch
from hypocenter.tap.unwritten import UnwrittenRead, find_read

TOGETHER = 1 << 15  # elements of small gradients: so many fit into a cache
PARTED, MICROBATCHES = 4, 8  # audited steps at which each of so many micro-batches has a sketch of its own
MOST_BY_NUMBERS = 4  # steps: a program that does not repeat itself is asked no more
_NUMBERS = 0.0, 1.0  # that fresh memory is filled with where a NaN in it is undone
_NEEDS_GRAD = operator.attrgetter("requires_grad")
ROUGH = 0.05  # relative, of norms: what ran as compiled code and is done again by operators need not be nearer


class Audit(audit.Audit[Context]):
    """Also of several ranks, each by itself or all of them together."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._clipped: Sequence[Tensor] = ()  # in this step
        self._is_rough = False  # something that was done again was compiled in the run
        self._ways = Ways(context.label)
        self._looks_at_memory = True  # until some was found to be read unwritten
        self._has_read_unwritten = False  # this step, it seems
        self._is_memory_due = schedule.parse("doubling")
        self._n_by_numbers = self._n_parted = 0

    def before_clip(self, parameters: Sequence[Tensor], max_norm: float) -> None:
        """What comes may be brought to a norm."""
        super().before_clip(parameters, max_norm)
        self._clipped = parameters

    def look(self, update: Update, *, can_be: bool) -> None:
        """A model that computes over ranks is done again by all of them, at steps that all of them audit."""
        council, audits = self.context.council, self._audits
        is_together = council.waits and council.meets_at(update.step)
        is_alone = self.context.rank()[1] == 1
        can_be = can_be and (is_alone or not self._n_more)
        is_due = audits.is_due_everywhere(update.step) if is_together else can_be and audits.is_due(update.step)
        try:
            if is_due:
                with torch.no_grad():
                    if is_together:
                        self._sketch_together(update, can_be=can_be)
                    elif is_alone:
                        self._audit_alone(update)
                    else:
                        self._sketch(update)
                        self._look_for_divisions(0.0, update)  # by the tape alone: ranks divide as well
        except torch.OutOfMemoryError as error:
            self._audits.stop()
            raise ReplayImpossible("the device has too little memory; no other step will be tried") from error
        finally:
            self._clipped = ()

    def _audit_alone(self, update: Update) -> None:
        """Where a replay is unlike the run, memory that nobody has written may be why."""
        try:
            self.audit(update)
        except UnlikeTheRun:
            if (row := self.unwritten(update)) is not None:
                self.rows.append(row)
            raise

    def balance(self, update: Update) -> Balance:
        """By replays of this rank's micro-batches."""
        own = {id(p) for p in update.parameters}
        named = [p for _, p in self.context.names.parameters() if p.requires_grad and id(p) in own]
        kept: list[list[Block]] = []

        def keep(gradients: Sequence[Tensor | None]) -> None:
            if len(update.microbatches) > 1 and len(kept) <= KEPT_AT_MOST:
                pairs = [(p, {"grad": g}) for p, g in zip(named, gradients, strict=True) if g is not None]
                parameters, held = [p for p, _ in pairs], [each for _, each in pairs]
                kept.append(blocks(self.context.framework, parameters, held, ELEMENTS))

        @functools.cache
        def by_id(number: int) -> dict[int, Tensor]:
            return {id(p): part for block in kept[number] for p, _, part, _ in block.items()}

        def parts(place: int) -> list[Tensor]:
            if len(update.microbatches) == 1:
                found = [None if (total := sums[place]) is None else sample(total, ELEMENTS)]
            else:
                found = [by_id(number).get(id(named[place])) for number in range(len(kept))]
            return [each for each in found if each is not None]

        self._is_rough = False
        sums = self._replayed(update, named, keep, looks=True)
        values = _values([grad for _, grad in update.gradients])
        given = {id(p): value for (p, _), value in zip(update.gradients, values, strict=True)}
        used = [given.get(id(p)) for p in named]
        entries = _entries(used, sums, ROUGH if self._is_rough else 0.0)
        return Balance(parameters=named, entries=entries, used=used, parts=parts)

    def unwritten(self, update: Update) -> Reading | None:
        """The last micro-batch once more, with fresh memory full of NaN, if the audit has found that this matters.

        Where no NaN comes of it, though the run had something else: full of two numbers, and each of these twice.
        """
        if not self._has_read_unwritten:
            return None
        self._has_read_unwritten = False
        microbatch, parameters = update.microbatches[-1], [p for p in update.parameters if p.requires_grad]
        context = OpContext(self.context.names.module_name)

        def again(mode: Poison) -> Replayed:
            """With guards against indices that are made of memory."""
            with torch.enable_grad(), without_hooks(parameters):
                return self.context.replayer.run(
                    microbatch, parameters, must_leave_no_trace=True, mode=mode, context=context,
                    around=contextlib.nullcontext(),
                )  # fmt: skip

        def is_as_before(mode: Poison) -> bool:
            try:
                return _is_finite(again(mode))
            except (ReplayImpossible, torch.OutOfMemoryError):
                raise
            except Exception:  # of the user's own code: it may refuse NaN
                return False

        found, fill = find_read(is_as_before, partial(Poison, context)), math.nan
        if found is None and self._n_by_numbers < MOST_BY_NUMBERS:
            self._n_by_numbers += 1
            found, fill = _read_by_numbers(lambda mode: _sizes(again(mode)), context), _NUMBERS[1]
        if found is None:
            return None
        self._looks_at_memory = False  # it is known
        return unwritten_row(found, update.step, self.context.clock.next_order(), fill)

    def norm_after_clip(self, update: Update) -> float:
        """Of the gradients that were clipped, which need not be those of one optimizer."""
        held = [g for p in self._clipped if p.grad is not None and (g := local(p.grad)) is not None]
        scaled = update.scaled
        left = 1.0 if scaled is None or scaled.is_unscaled else scaled.state.scale or 1.0
        return math.hypot(*to_host(norms(held))) / left

    def n_divisions(self, update: Update) -> int:
        """By the tape."""
        roots = update.microbatches[-1].roots
        if len(roots) != 1 or roots[0] is None:
            return 0
        return n_divisions(self.context.tape, roots[0], len(update.microbatches))

    def loss_factor(self, update: Update) -> float:
        """By the tape."""
        roots = [slot for each in update.microbatches for slot in each.roots if slot is not None]
        factors = {factor_of(self.context.tape, slot) for slot in roots}
        return factors.pop() if len(factors) == 1 else 1.0

    def lost_calls(self, update: Update) -> list[str]:
        """By the tape."""
        tape = self.context.tape
        went_through = {position for each in update.microbatches for position, _ in tape.slice(each)}
        modules = [
            event.module
            for position, event in enumerate(tape.events)
            if event.module is not None and event.training and event.ambient.grad and position not in went_through
        ]
        return [self.context.names.module_name(module) or type(module).__name__ for module in modules]

    def _replayed(
        self,
        update: Update,
        parameters: Sequence[Tensor],
        each: Callable[[Sequence[Tensor | None]], None],
        *,
        looks: bool = False,
    ) -> list[Tensor | None]:
        """What the micro-batches give for each of these parameters; None of what gets nothing.

        Several are added up in float64, one is as it is.

        Args:
            each: told of the gradients of one micro-batch.
            looks: whether what else is asked of a step is looked at in the last one.
        """
        if any(microbatch.is_taken for microbatch in update.microbatches):
            raise ReplayImpossible("the program puts gradients into .grad itself, as it likes")
        if why := why_no_room(parameters):
            raise ReplayImpossible(why)
        sums: list[Tensor | None] = [None] * len(parameters)
        for microbatch in update.microbatches:
            looked_at, is_last = None, microbatch is update.microbatches[-1]
            with torch.enable_grad(), without_hooks(parameters), uncollected():
                if is_last and looks:
                    looked_at = self._looked_at(update, parameters)
                replayed = looked_at[0] if looked_at is not None else self._run(microbatch, parameters)
            why = self.context.replayer.unlike_the_run(microbatch)
            if why and self.context.replayer.is_in_fp8(microbatch):
                raise ReplayImpossible(f"its gradients need not be those of a replay: {why}")
            self._is_rough = self._is_rough or bool(why)
            known = None if looked_at is None else looked_at[1]
            self.note_how_far(update, partial(_how_far, microbatch, replayed, known), is_exact=not why)
            values = _values(replayed.grads)
            each(values)
            if len(update.microbatches) == 1:
                return values
            for index, value in enumerate(values):
                if value is not None:
                    known = sums[index]
                    sums[index] = _copied(value) if known is None else known.add_(in_float64(value))
        return sums

    def are_alike(self, update: Update) -> bool:
        """The same calls at the same lines; not where the gradient of an input is asked for: that may be all of it."""
        taken = [[event for _, event in self.context.tape.slice(each)] for each in update.microbatches]
        lines = [[(event.code, event.line) for event in events] for events in taken]
        given = [external.tensor for events in taken for event in events for external in event.externals]
        asks = any(t.requires_grad and not isinstance(t, torch.nn.Parameter) for t in given)
        return bool(lines[0]) and all(each == lines[0] for each in lines) and not asks

    def _looked_at(self, update: Update, parameters: Sequence[Tensor]) -> tuple[Replayed, float] | None:
        """The last micro-batch again, and how far it is from the run; None where nothing more can be looked at in it.

        Once for all: with fresh memory full of NaN, if that is due, and with values followed from parameters to the
        loss. Where the NaN make a difference, or replays differ anyway, it is done without them.
        """
        found, graph = None, GraphShape()
        if self._is_memory_asked(update):
            found = self._with_nan_in_memory(update, parameters, graph)
        elif not self._is_memory_due(update.step) and self._ways.may_be_known(update):
            found = self._done_again(update, parameters, [graph])
            if found is not None and self._ways.is_as_before(update, graph.shape):
                return found
            found = None
        if found is None and self._ways.are_followed:
            found = self._followed(update, parameters, graph)
            self._ways.are_followed = found is not None  # else it never is again
        if found is None:
            return None
        row = self._ways.row(update, paths(found[0].values), parameters, graph.shape)
        if row is not None:
            self.rows.append(replace(row, order=self.context.clock.next_order()))
        return found

    def _is_memory_asked(self, update: Update) -> bool:
        """Whether fresh memory is to be looked at in this step; not where another look has met none."""
        is_due = self._looks_at_memory and self.context.rank()[1] == 1 and self._is_memory_due(update.step)
        return is_due and update.microbatches[-1].makes_room is not False

    def _with_nan_in_memory(
        self, update: Update, parameters: Sequence[Tensor], graph: GraphShape
    ) -> tuple[Replayed, float] | None:
        """The same, if it comes to what the run came to."""
        poison = Poison(None)
        try:
            found = self._followed(update, parameters, graph, poison)
            is_finite = found is not None and (not poison.n_fresh or _is_finite(found[0]))
        finally:
            poison.clean()
        update.microbatches[-1].makes_room = poison.n_fresh > 0
        self._has_read_unwritten = not is_finite or (poison.n_fresh > 0 and found is not None and found[1] > 0.0)
        return found if found is not None and is_finite and (found[1] == 0.0 or not poison.n_fresh) else None

    def _followed(
        self, update: Update, parameters: Sequence[Tensor], graph: GraphShape, poison: Poison | None = None
    ) -> tuple[Replayed, float] | None:
        """The last micro-batch with its values followed, if they are, and within this mode, if there is one."""
        context = OpContext(self.context.names.module_name)
        modes: list[Any] = [graph] if poison is None else [poison, graph]
        modes += [Flow(parameters, context)] if self._ways.are_followed else []
        return self._done_again(update, parameters, modes, context)

    def _done_again(
        self, update: Update, parameters: Sequence[Tensor], modes: Sequence[Any], context: OpContext | None = None
    ) -> tuple[Replayed, float] | None:
        """The last micro-batch under these modes; None where it cannot be done so, or comes to something else then."""
        microbatch = update.microbatches[-1]
        try:
            replayed = self.context.replayer.run(
                microbatch, parameters, must_leave_no_trace=True, mode=Together(modes), context=context
            )
            return replayed, must_repeat(microbatch, replayed)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # the user's own code runs here, under a mode that it may not like
            return None

    def _run(self, microbatch: Microbatch, parameters: Sequence[Tensor], **around: Any) -> Replayed:
        try:
            return self.context.replayer.run(microbatch, parameters, must_leave_no_trace=True, **around)
        except (ReplayImpossible, torch.OutOfMemoryError):
            raise
        except Exception as error:  # the user's own code runs here: anything may come out of it
            self._audits.stop()
            raise ReplayImpossible(f"the replay raised {type(error).__name__}: {str(error)[:200]}") from error

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
                why = why or why_no_room(parameters)
                seats = replace(table, groups=lambda: groups)
                agreement = agree(seats, whole, len(update.microbatches), len(parameters), why)
                if agreement.why_not:
                    raise ReplayImpossible(agreement.why_not)
                problem = ""
                try:
                    self._sketch(update, law.TOGETHER)
                except ReplayImpossible as error:
                    problem = str(error)
                    groups.close()  # who waits for this rank in one of them is told at once
                said = table.most([int(bool(problem))])
                if said is None or said[0]:
                    self._audits.stop()  # on all ranks: none may come to an audit that another one does not come to
                    raise ReplayImpossible(problem or "another rank could not do it again; no other step will be tried")
        finally:
            groups.close()  # if this rank has failed, those who wait for it are told at once

    def _trained_here(self, update: Update) -> list[Tensor]:
        """Parameters that this optimizer or none of this rank holds."""
        elsewhere = {
            id(p) for each in self.context.optimizers() for group in each.param_groups for p in group["params"]
        }
        elsewhere -= {id(p) for p in update.parameters}
        return [p for _, p in self.context.names.parameters() if p.requires_grad and id(p) not in elsewhere]

    def _sketch(self, update: Update, how: str = "") -> None:
        """This rank's side of the law. `how` says whether other ranks had to take part."""
        named = self._trained_here(update)
        parts: list[list[Tensor | None]] = []
        is_parted = self._n_parted < PARTED and 1 < len(update.microbatches) <= MICROBATCHES

        def each(values: Sequence[Tensor | None]) -> None:
            if is_parted:
                parts.append([None if value is None else _sketch(value) for value in values])

        sums = self._replayed(update, named, each, looks=not how)
        self._n_parted += is_parted
        used = {id(p): local(grad) for p, grad in update.gradients}
        scaled = update.scaled
        scale = (scaled.state.scale or 1.0) if scaled is not None and scaled.is_unscaled else 1.0
        pairs = [
            (p, law.MADE, None if total is None else in_float64(total) / scale)
            for p, total in zip(named, sums, strict=True)
        ]
        own = {id(p) for p in update.parameters}
        for p, total in zip(named, sums, strict=True):
            nothing = torch.zeros_like(total) if total is not None and id(p) in own else None
            pairs.append((p, law.USED, used.get(id(p), nothing)))
        held = [(p, port, 0, _sketch(values)) for p, port, values in pairs if values is not None]
        held += [
            (p, law.PART, number, sketch / scale)
            for number, sketches in enumerate(parts)
            for p, sketch in zip(named, sketches, strict=True)
            if sketch is not None
        ]
        numbers = _to_host([torch.cat([sketch, _print(p)]) for p, *_, sketch in held])
        order = self.context.clock.next_order
        hooks = hooks_of(self.context.names.roots())
        groups = [group["params"] for each in self.context.optimizers() for group in each.param_groups]
        group_of = {id(p): number for number, group in enumerate(groups) for p in group}
        self.rows += [
            Reading(
                step=update.step, microbatch=number, phase="grad", site=self.context.label(p), port=port, order=order(),
                op=hooks.get(id(p), ""), module=how, call=group_of.get(id(p), 0),
                dtype=str(p.dtype).removeprefix("torch."), shape=tuple(p.shape),
                summary=Summary(n=p.numel(), sum=found[-1], sketch=tuple(found[:-1])),
            )
            for (p, port, number, _), found in zip(held, numbers, strict=True)
        ]  # fmt: skip


def _sketch(values: Tensor) -> Tensor:
    """Sums of a sample, each element with a sign that depends on its place alone: [SKETCH], float64.

    Linear: the sketches of parts of a sum add up to that of the sum.
    """
    part = values.detach().reshape(-1)
    part = in_float64(part[:: -(-part.numel() // ELEMENTS)])
    generator = torch.Generator().manual_seed(part.numel())
    signs = torch.randint(0, 2, (part.numel(),), generator=generator, device="cpu").to(part.device) * 2 - 1
    padded = torch.nn.functional.pad(part * signs, (0, -part.numel() % law.SKETCH))
    return padded.reshape(law.SKETCH, -1).sum(1)


def _print(parameter: Tensor) -> Tensor:
    """One number that tells the values of a parameter from those of another: [1], float64."""
    values = sample(parameter.detach(), ELEMENTS)
    return torch.zeros(1, dtype=torch.float64, device="cpu") if values is None else in_float64(values).sum().reshape(1)


def _entries(used: Sequence[Tensor | None], made: Sequence[Tensor | None], least: float) -> Entries:
    """With this tolerance at least. What nothing was made for is left out."""
    places = [
        place
        for place, (one, other) in enumerate(zip(used, made, strict=True))
        if other is not None and (one is None or one.shape == other.shape)
    ]
    names = ["" if (one := used[place]) is None else name_of(one.dtype) for place in places]
    tolerances = {name: max(tolerance_of(name), least) for name in set(names)}
    tolerance = np.array([tolerances[name] for name in names])
    numbers = _products([(used[place], cast("Tensor", made[place])) for place in places])
    return Entries(places=places, used=numbers[0], made=numbers[1], dot=numbers[2], tolerance=tolerance)


def _products(pairs: Sequence[tuple[Tensor | None, Tensor]]) -> NDArray[np.float64]:
    """Of each (used, made): used * used, made * made, used * made, in float64: [3, n]; 1 or 0 of the very same.

    Small tensors of the host together, as many as fit into a cache; of devices and large ones in one transfer.
    """
    found = np.zeros((3, len(pairs)))
    small = [i for i, (one, other) in enumerate(pairs) if other.is_cpu and other.numel() <= ROW and one is not None]
    n = np.array([pairs[i][1].numel() for i in small], np.int64)
    ends = np.cumsum(n)
    first = 0
    while first < len(small):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] - n[first] + TOGETHER, "right")))
        here, starts = small[first:last], ends[first:last] - n[first:last] - (ends[first] - n[first])
        one, other = (_flatten_dense_tensors([cast("Tensor", pairs[i][side]) for i in here]) for side in (0, 1))
        if one.dtype == other.dtype and torch.equal(one, other):  # mostly they are the very same
            found[:, here] = np.logical_or.reduceat((other != 0).numpy(), starts)
        else:
            used, made = one.double().numpy(), other.double().numpy()
            for row, each in enumerate((used * used, made * made, used * made)):
                found[row, here] = np.add.reduceat(each, starts)
        first = last
    numbers, others = list[Tensor](), list[int]()
    for i in sorted(set(range(len(pairs))) - set(small)):
        one, other = pairs[i]
        if one is not None and other.is_cpu and one.dtype == other.dtype and torch.equal(one, other):
            found[:, i] = bool(other.any())
            continue
        others.append(i)
        made = in_float64(other).reshape(-1)
        used = torch.zeros_like(made) if one is None else in_float64(one).reshape(-1)
        numbers += torch.dot(used, used), torch.dot(made, made), torch.dot(used, made)
    if numbers:
        found[:, others] = np.array(_to_host(numbers)).reshape(-1, 3).T
    return found


def _read_by_numbers(numbers: Callable[[Poison], list[float]], context: OpContext) -> UnwrittenRead | None:
    """Who reads fresh memory unwritten, where a NaN in it is undone; None where nobody does, or replays differ anyway.

    Args:
        numbers: does the step again within a mode; gives its losses and sizes of its gradients.
    """
    try:
        empty, full = (numbers(Poison(None, fill=fill)) for fill in _NUMBERS)
        if empty == full or [numbers(Poison(None, fill=fill)) for fill in _NUMBERS] != [empty, full]:
            return None
        return find_read(lambda mode: numbers(mode) == empty, partial(Poison, context, fill=_NUMBERS[1]))
    except (ReplayImpossible, torch.OutOfMemoryError):
        raise
    except Exception:  # of the user's own code: it may refuse such numbers
        return None


def _sizes(replayed: Replayed) -> list[float]:
    held = [values for g in replayed.grads if g is not None and (values := local(g)) is not None]
    return to_host(norms([*held, *replayed.values]))


def _is_finite(replayed: Replayed) -> bool:
    return all(map(math.isfinite, _sizes(replayed))) or replayed.finite


def _how_far(microbatch: Microbatch, replayed: Replayed, known: float | None) -> float:
    return must_repeat(microbatch, replayed) if known is None else known


def _values(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """What is here of each."""
    held = [each for each in gradients if each is not None]
    if are_plain(held) and not any(map(_NEEDS_GRAD, held)):
        return list(gradients)
    return [None if each is None else local(each) for each in gradients]


def _copied(values: Tensor) -> Tensor:
    """In float64."""
    found = in_float64(values)
    return found.clone() if found is values else found


def _to_host(numbers: Sequence[Tensor]) -> list[Any]:
    """Numbers, or vectors of equal length, in float64: one transfer for each device."""
    found: dict[int, Any] = {}
    for device in {each.device for each in numbers}:
        here = [i for i, each in enumerate(numbers) if each.device == device]
        found.update(zip(here, torch.stack([numbers[i] for i in here]).tolist(), strict=True))
    return [found[i] for i in range(len(numbers))]
