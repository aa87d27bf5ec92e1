"""`run --relations`: what must not matter is changed in replays of a healthy micro-batch, and looked at.

By default after the first update, and then at every eighth step and rarer ones, while there is time: what begins in
the middle of a run is seen too. Also after the first update of an optimizer that comes later (a student's, after its
teacher was trained). One rank looks; the others run the same code. Where a model computes on several ranks together,
all look at the steps of the schedule, and the first rank leads.

A first look may take as many forwards as all relations need, however long one is, up to `WHOLE_S`. What there was no
time for is asked first at the next look, and what was never asked is told when the run ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hypocenter import own_time, schedule
from hypocenter.axes import WORDS
from hypocenter.config import Config
from hypocenter.detect import relation_rows as rows
from hypocenter.nouns import Reading
from hypocenter.relations.check import Broken, Looked, look
from hypocenter.relations.earlier import Earlier
from hypocenter.relations.exchanged import Before
from hypocenter.relations.loop import look_at_loop
from hypocenter.relations.loop_again import Again
from hypocenter.relations.losses import Found
from hypocenter.relations.relation import RELATIONS, Relation, asked_in_runs
from hypocenter.relations.subject import NO_TIME, Subject
from hypocenter.replay.own_groups import OnlyOwn
from hypocenter.session.observer import Context, Observer, Update
from hypocenter.session.observers.optimizer_rows import count_row, number_row
from hypocenter.session.observers.relations_due import (
    AGAIN,
    AGAIN_S,
    MOST_AGAIN_S,
    MOST_GROWN,
    SHARE,
    Shape,
    are_longer,
    is_due,
    joined,
)
from hypocenter.session.observers.relations_together import look_together
from hypocenter.tap.free_memory import free_bytes, peak_bytes
from hypocenter.tap.left import Left, left_in
from hypocenter.tap.loop_tape import LoopTape
from hypocenter.tap.state import capture_rng, restore_rng
from hypocenter.tap.tape import storage_of
from hypocenter.tap.weakly import Ref
from hypocenter.unwarned import unwarned

AUTO = "auto"
WAIT = 3  # updates, at which what has no gradient must have none
OPTIMIZERS = 4  # whose second update is due
MOST_RANKS, MOST_BYTES = 64, 1 << 28  # that look together; of their parameters, which are gathered over the host
MOST_KEPT = 1024  # tensors that modules keep beside parameters and buffers
MOST_IN_VAIN = 3  # looks on all ranks in which nothing could be asked
FREE_S, FIRST_SHARE = 1.0, 0.01  # what it may take by default until all was asked once: so much, or of the time
WHOLE_S = 10.0  # what it may take until then where forwards are long
LOOP_S = 0.25  # what is left in any case for what the loop computes


class Relations(Observer):
    """Writes a row for each relation that does not hold, once for each module."""

    @classmethod
    def is_wanted(cls, config: Config) -> bool:
        """Return whether relations are to be looked at: by default where steps may be replayed."""
        return config.looks_at_relations

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        RELATIONS.load(context.config.plugins)
        self._is_auto = context.config.relations == AUTO
        self._is_due = is_due if self._is_auto else schedule.parse(context.config.relations)
        self._began: float | None = None
        self._before = 0.0  # when the update before this one came
        self._spent_s, self._free_s = 0.0, FREE_S
        self._known: set[str] = set()  # relations whose answer will be the same: not held, or notes about the program
        self._wrong: set[tuple[str, str, str]] = set()  # what is known of losses
        self._waiting: dict[Found, int] = {}  # what parameters without a gradient may disprove; updates left for it
        self._dead: dict[str, int] = {}  # parameters without gradient: since which look
        self._optimizers: dict[int, tuple[Ref[Any], int]] = {}  # by id, with the number of updates up to the second
        self._n_optimizers = 0  # that were met
        self._longest: list[Shape] = []  # of what a model was given at looks, see `_shapes`
        self._n_grown = 0
        self._held: dict[str, int] = {}  # the last step at which a relation held
        self._looked: int | None = None  # the last step at which the loss was looked at
        self._said: tuple[str, ...] = ()
        self._is_known_once = False  # all that can be asked was asked
        self._asked: dict[str, int] = {}  # the last step at which there was time for a relation
        self._no_time: list[str] = []  # those for which there never was
        self._forward_s = 0.0  # what a forward took at a look; 0: there was none
        self._is_owed = False  # a step that was due could not be looked at
        self._off = ""  # why nothing is looked at any more
        self._still: list[Left] = []  # what modules were given, and kept, at the last look
        self._given_before = Before()  # at looks on all ranks
        self._in_vain: list[str] = []  # why nothing could be asked in looks on all ranks
        self._loop: LoopTape | None = None  # what the program's own code computes in the step under way, if it is due
        self._earlier, self._has_loop = Earlier(), True
        self._is_next = False  # the next step may be looked at
        self._next = 0, self._is_due(0)  # a step, and whether it is due

    def attach(self) -> Callable[[], None]:
        """Listen to the loop from the first step, if that is due."""
        if not self._is_auto and self._is_due(0):
            self._listen(LoopTape())
        return lambda: self._listen(None)

    def _listen(self, loop: LoopTape | None) -> None:
        self._loop = loop
        self.context.take_loop(loop)

    def before_backward(self, roots: Sequence[Any]) -> None:
        """End what is noted of the loop: the first micro-batch of a step tells as much as all."""
        if self._loop is not None:
            self._loop.end(roots)

    def after_update(self, update: Update) -> None:
        """Listen to the loop where the next step is due: what it computes beside gradients is on no other tape."""
        is_alone = self.context.rank()[0] == 0 and not self.context.council.waits
        if self._is_next and self._has_loop and is_alone and self._may_take(self._before) > 0.0:
            self._listen(LoopTape())

    def before_update(self, update: Update) -> None:
        """Look at relations in replays at a due step, while the parameters are still those that it started from."""
        loop = self._loop
        if loop is not None:
            self._listen(None)
        if self._waiting:
            self._wait(update)
        n_updates = self._n_updates(update.optimizer)
        if n_updates == 1:
            self._without_gradient(update)
        now = own_time.now()
        self._began, before = self._began or now, self._before
        self._before = now
        is_first_look = self._is_auto and n_updates == 2
        may_grow = self._is_auto and bool(self._longest) and self._n_grown < MOST_GROWN
        is_grown = may_grow and are_longer(self._shapes(), self._longest)
        is_planned = self._is_due_at(update.step)
        is_due = is_planned or is_grown or self._is_owed
        self._is_next = not self._off and (self._next[1] or (self._is_auto and n_updates == 1))
        council = self.context.council
        is_together = council.waits and council.meets_at(update.step)
        if self._is_auto and update.step == 0:
            return
        if is_together and is_planned:
            self._look_together(update, now, before)
        if self._off or is_together or not (is_first_look or is_due) or self.context.rank()[0] != 0:
            return
        self._is_owed = False
        if not update.microbatches or update.skipped or not update.check.is_finite:
            self._is_owed = self._is_auto and not self._is_known_once
            self._is_next = self._is_next or self._is_owed
            return
        if is_first_look and self._free_s < self._spent_s:
            self._free_s = self._spent_s + FREE_S
        if is_grown:
            self._n_grown, self._free_s = self._n_grown + 1, max(self._free_s, self._spent_s + AGAIN_S)
        may_take_s = self._may_take(now, is_first=is_first_look)
        if not self._has_time(now, before, may_take_s):
            self._note_no_time(update)
            return
        with self._spending(now):
            self._look(update, now, may_take_s, loop)

    def _has_time(self, now: float, before: float, may_take_s: float) -> bool:
        few_s = 2 * self._forward_s or (now - before) / 4  # a forward takes a quarter of a step, at least
        return 0.0 < may_take_s >= few_s

    @contextlib.contextmanager
    def _spending(self, now: float) -> Generator[None, None, None]:
        """Around a look: what comes of the user's own code ends all looks, and training goes on."""
        rng = capture_rng()  # a relation of the program's own may draw
        is_one_of_many = self.context.rank()[1] > 1
        try:
            with OnlyOwn() if is_one_of_many else contextlib.nullcontext():
                yield
        except torch.OutOfMemoryError:
            self._give_up("the device has too little memory")
        except Exception as error:  # anything may come out of it
            self._give_up(f"the model raised {type(error).__name__}: {str(error)[:200]}")
        finally:
            restore_rng(rng)
            self._before = own_time.now()
            self._spent_s += self._before - now

    def _look_together(self, update: Update, now: float, before: float) -> None:
        """Look with all other ranks, which come here at the same step; the first one says whether there is time."""
        is_first, may_take_s = self.context.rank()[0] == 0, self._may_take(now)
        is_healthy = bool(update.microbatches) and not update.skipped and update.check.is_finite
        why = "" if is_healthy else "this step is not healthy"
        why = self._off or why  # all ranks come here all the same
        if is_first and not why:
            why = self._why_not_together(update)
            why = why or ("" if self._has_time(now, before, may_take_s) else NO_TIME)
            why = why or (self._in_vain[-1] if len(self._in_vain) == MOST_IN_VAIN else "")
        left_s = self._left_s(now)
        with self._spending(now):
            looked = look_together(
                self.context, update, lambda: self._subject(update, left_s, may_take_s), self._asked_of, why,
                self._given_before,
            )  # fmt: skip
            if not is_first:
                return
            if isinstance(looked, Looked) and not looked.held and not looked.broken:
                self._in_vain.append(next(iter(looked.not_asked.values()), ""))
            if looked == NO_TIME:
                self._note_no_time(update)
            else:
                self._take(looked, update, now)

    def _asked_of(self, subject: Subject) -> Looked:
        kept = [*(each.tensor for each in subject.of_model), *subject.attributes()]
        subject.still, self._still = self._still, left_in([t for t in kept if storage_of(t)][:MOST_KEPT])
        looked = look(subject, self._chosen(), held=self._held.keys() - self._known)
        self._forward_s = subject.longest_s
        return looked

    def _chosen(self) -> list[Relation]:
        """Return what is to be asked; what there was no time for comes first."""
        told = {each.code for each in asked_in_runs() if each.code and each.name in self._known}  # the same fault
        chosen = [each for each in asked_in_runs() if each.name not in self._known and each.code not in told]
        return sorted(chosen, key=lambda each: self._asked.get(each.name, -1))

    def _take(self, looked: Looked | str, update: Update, began: float) -> None:
        """Note what was found, or why nothing was asked."""
        chosen = self._chosen()
        if isinstance(looked, str):
            looked = Looked(not_asked={each.name: looked for each in chosen})
        if not self._is_auto and not looked.held and not looked.broken:
            why = next(iter(looked.not_asked.values()), "")
            self.context.warn(f"relations could not be looked at: {why}")
        self._asked |= dict.fromkeys((each.name for each in chosen if each.name not in looked.no_time), update.step)
        self._no_time = [name for name in looked.no_time if name not in self._asked]
        is_asked = bool(looked.held or looked.broken) or self.context.rank()[1] == 1
        if is_asked and not self._no_time and not self._is_known_once:
            took_s = own_time.now() - began
            again_s = max(AGAIN_S, min(AGAIN * took_s, MOST_AGAIN_S))
            self._is_known_once, self._free_s = True, self._spent_s + took_s + again_s
        self._known |= {each.relation for each in looked.broken}
        self._known |= {each.name for each in chosen if not each.code and each.name in looked.held}
        self._note(looked, update)

    def _shapes(self) -> list[Shape]:
        """Return the shapes of what the first module of the step was called with, after how many tensors it gave.

        What is given back for the first time, as by a head that joins later, was in no look.
        """
        for event in self.context.tape.events:
            if event.module is not None:
                given = [tuple(e.shape) for e in (*event.args, *event.kwargs.values()) if isinstance(e, Tensor)]
                return [(len(event.slots),), *given]
        return []

    def _left_s(self, now: float) -> float:
        """Return how much time a look may take."""
        if not self._is_auto or self._began is None:
            return float("inf")
        share = SHARE if self._is_known_once else FIRST_SHARE
        return max(self._free_s, share * (now - self._began)) - self._spent_s

    def _may_take(self, now: float, *, is_first: bool = False) -> float:
        """Return the same, and more where forwards are long and not all was asked."""
        is_whole = is_first or not self._is_known_once
        return max(self._left_s(now), WHOLE_S - self._spent_s if is_whole else 0.0)

    def _note_no_time(self, update: Update) -> None:
        """Note that nothing was asked, the first time: so it may be until the run ends."""
        if not self._asked and not self._no_time:
            self._no_time = [each.name for each in asked_in_runs()]
            self._say(Looked(not_asked=dict.fromkeys(self._no_time, NO_TIME)), update.step)

    def at_end(self) -> None:
        """Say what was never asked: to be healthy means less then."""
        if self._no_time and self._is_auto and not self._off:
            which = ", ".join(self._no_time) if self._asked else "all"
            self.context.warn(f"relations not asked for lack of time: {which} (`hypocenter run --relations` asks them)")

    def _is_due_at(self, step: int) -> bool:
        """Return whether this step is due, and ask for the next one, of which it must be known before it begins."""
        if self._next[0] == step + 1:  # one more optimizer of the same step
            return self._is_due(step)
        is_due = self._next[1] if self._next[0] == step else self._is_due(step)
        self._next = step + 1, self._is_due(step + 1)
        return is_due

    def _n_updates(self, optimizer: Any) -> int:
        """Return 1 or 2 for the first or second update of one of the first optimizers; else 0."""
        held, n = self._optimizers.get(id(optimizer), (None, 0))
        if held is None or held() is not optimizer:  # who makes one for each task gets the same ids again
            if self._n_optimizers == OPTIMIZERS:
                return 0
            self._n_optimizers += 1
            held, n = Ref(optimizer), 0
        if n == 2:
            return 0
        self._optimizers[id(optimizer)] = held, n + 1
        return n + 1

    def _wait(self, update: Update) -> None:
        """Wait before a parameter without gradient is told of: an expert, or one of a loss of 0, may get one yet."""
        norms = update.check.grad_norms
        held = {self.context.label(p) for p in update.parameters}
        for found in [each for each in self._waiting if each.parameters[0] in held]:
            self._waiting[found] -= 1
            if any(norms.get(name) for name in found.parameters):
                del self._waiting[found]
            elif not self._waiting[found]:
                del self._waiting[found]
                since = max(self._dead.get(name, update.step) for name in found.parameters)
                self.rows.append(_row_of_loss(found, update.step, self.context.clock.next_order(), since))

    def _without_gradient(self, update: Update) -> dict[str, Tensor]:
        """Return its parameters that have none, and note since when."""
        norms, found = update.check.grad_norms, dict[str, Tensor]()
        for parameter in update.parameters:
            name = self.context.label(parameter)
            if norms.get(name) or not parameter.requires_grad:
                self._dead.pop(name, None)
            else:
                found[name] = parameter
                self._dead.setdefault(name, update.step)
        return found

    def _give_up(self, why: str) -> None:
        self._off = why
        if not self._is_auto:
            self.context.warn(f"relations are not looked at any more: {why}")

    def _look(self, update: Update, began: float, may_take_s: float, loop: LoopTape | None) -> None:
        self._longest = joined(self._longest, self._shapes())
        if why := self._why_not(update):
            self._take(why, update, began)
            return
        subject = self._subject(update, self._left_s(began), may_take_s)
        looked = self._asked_of(subject)
        is_broken = any(each.relation == "samples" for each in looked.broken) or "samples" in self._known
        if loop is not None and self._has_loop and not is_broken:
            until = max(began + subject.limit_s, own_time.now() + LOOP_S)
            looked.losses += self._asked_of_loop(loop, looked, until)
        self._take(looked, update, began)

    def _asked_of_loop(self, loop: LoopTape, looked: Looked, until: float) -> list[Found]:
        """Return where samples meet outside of the model; its own are not known to."""

        def is_loaded(tensor: Tensor) -> bool:
            loaded = self.context.loaded((tensor,))
            return loaded is not None and len(loaded.indices) == looked.n_rows

        told = {*(each.code for each in looked.losses), *(code for code, *_ in self._wrong)}
        holds = "samples" in looked.held or "samples" in self._held
        try:
            with torch.no_grad(), unwarned():
                again = Again(loop, looked.n_rows, is_loaded, until)
                found = look_at_loop(again, self._earlier, knows_pairs="HC252" in told, knows_model=holds)
                self._earlier.remember(loop)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # relations of the model go on
            self._has_loop = False
            self.context.warn(f"what the loop computes is not looked at any more: {type(error).__name__}: {error}")
            return []
        return found

    def _why_not(self, update: Update) -> str:
        """Say why nothing can be asked on one rank alone, or of this device; "" if it can."""
        spread = self._spread()
        if spread or self.context.replayer.needs_all():
            how = ", ".join(WORDS.get(axis, axis) for axis in spread) or "sharded"
            return f"the model computes on several ranks together ({how})"
        return _why_no_room(update)

    def _why_not_together(self, update: Update) -> str:
        """Say why nothing can be asked on all ranks together; "" if it can."""
        n_ranks = self.context.rank()[1]
        if "pp" in self._spread():
            return "the model's stages lie on several ranks (pipeline)"
        if n_ranks > MOST_RANKS:
            return f"{n_ranks:,} ranks are not connected for it"
        where = {p.device.type for p in update.parameters}
        n_bytes = sum(p.nbytes for p in update.parameters) * n_ranks
        if where != {"cpu"} and n_bytes > MOST_BYTES:
            return f"{n_bytes / 1e9:.1f} GB of parameters would go over the host"
        return _why_no_room(update)

    def _spread(self) -> list[str]:
        """Return the axes, besides that of the data, along which it computes on several ranks together."""
        return [axis for axis, ranks in self.context.place().groups.items() if axis != "dp" and len(ranks) > 1]

    def _subject(self, update: Update, limit_s: float, whole_s: float) -> Subject:
        context, microbatch = self.context, update.microbatches[-1]
        subject = Subject(context.replayer, microbatch, context.names.module_name, limit_s=limit_s, whole_s=whole_s)
        if not context.council.waits:
            subject.without_gradient = self._without_gradient(update)
        for given in subject.of_model:
            loaded = context.loaded(context.tape.originals(given.tensor))
            if loaded is not None and loaded.indices:
                subject.n_rows = len(loaded.indices)
        return subject

    def _note(self, looked: Looked, update: Update) -> None:
        order, step = self.context.clock.next_order, update.step
        for each in looked.broken:
            self.rows.append(_row(each, step, order(), self._held.get(each.relation, step)))
        for each in looked.losses:
            known = (each.code, each.module, each.wrong.title.partition(":")[0])  # a share is another in each step
            if known not in self._wrong:
                self._wrong.add(known)
                if each.parameters:
                    self._waiting[each] = WAIT
                else:
                    self.rows.append(_row_of_loss(self._dated(each), step, order(), step))
        self._looked = step
        self._held |= dict.fromkeys(looked.held, step)
        self._say(looked, step)

    def _say(self, looked: Looked, step: int) -> None:
        """Write down which relations were asked, and why others were not, if that is new."""
        held = [f"{name}{rows.HOLDS}" for name in looked.held]
        words = (*held, *(f"{name}{rows.NOT_ASKED}{why}" for name, why in looked.not_asked.items()), *looked.notes)
        n_asked = len(looked.held) + len(looked.broken)
        if n_asked or words != self._said:
            self._said = words
            order = self.context.clock.next_order()
            row = count_row(rows.SITE, rows.LOOKED, step, order, (n_asked, len(looked.held)))
            self.rows.append(replace(row, names=words))

    def _dated(self, found: Found) -> Found:
        """Return it with the last step at which it was not seen."""
        if self._looked is None or not found.was_asked:
            return found
        why = f"{found.wrong.why}; it was not seen at step {self._looked}"
        return replace(found, wrong=replace(found.wrong, why=why))


def _why_no_room(update: Update) -> str:
    devices = {p.device for p in update.parameters}
    return "a forward may not fit into memory" if any(peak_bytes(d) > free_bytes(d) for d in devices) else ""


def _row(broken: Broken, step: int, order: int, held: int) -> Reading:
    row = number_row(broken.module, rows.RELATION, step, order, broken.size, module=broken.kind, call=step - held)
    names = (broken.what, broken.whom, broken.exception, broken.relation)
    return replace(row, op=broken.code, source=broken.source, names=names, dtype=f"{broken.limit:.3g}")


def _row_of_loss(found: Found, step: int, order: int, since: int) -> Reading:
    kind = rows.NOTE if found.wrong.is_note else ""
    row = number_row(found.module, rows.LOSS, step, order, found.size, module=kind, call=step - since)
    return replace(
        row, op=found.code, source=found.source, names=(found.wrong.title, found.wrong.why, found.wrong.remedy)
    )
