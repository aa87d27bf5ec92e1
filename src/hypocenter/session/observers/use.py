"""The law of use: what is trained has a gradient, what has one is in an optimizer, and is used once. For HC233.

Everything that is asked here is on the host already: the norms that were read for the check of the step, and which
parameters the optimizers hold.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypocenter import schedule
from hypocenter.detect.law_rows import (
    ALL,
    FROZEN,
    MERGED,
    NEVER_USED,
    NO_GRADIENT,
    NOT_CALLED,
    NOT_STEPPED,
    NOT_USED,
    NOTHING,
    REPLACED,
    SITE,
    STRANGER,
    TIMES_NOTHING,
    USED_TWICE,
)  # fmt: skip
from hypocenter.nouns import replace
from hypocenter.session.events import Observed, Observer, Update
from hypocenter.session.observers.optimizer_rows import number_row
from hypocenter.tap.source import user_line
from hypocenter.tap.weakly import Ref

FIRST = 4  # updates of an optimizer, at each of which a parameter must have had a gradient
GONE_FOR = 8  # updates in a row
ELEMENTS = 64  # of a parameter, to see whether it moves
LONG = 64  # updates, in none of which a parameter had a gradient, and those of the same place in other layers had
EARLY, LEAST_UNUSED = 12, 2  # updates after which calls of one of many alike are counted; of those without a gradient
USUAL = 3  # updates of an optimizer that use all once, before one that does not
TOLD_BY = 16  # gradients, by which it is told whether all are those of the update before
_NUMBERS = re.compile(r"[Ff]loat(?!8)")  # formats of what is trained: others hold weights that were quantised
UNUSED, UNUSED_TIMES = 8, 4  # backward passes after the last update; times those that an update took at most


@dataclass(slots=True)
class _Trained:
    """Of one optimizer."""

    n_updates: int = 0
    n_idle: int = 0  # of these, all gradients were 0
    names: set[str] = field(default_factory=set)  # had a gradient at every update so far
    used: set[str] = field(default_factory=set)  # had a gradient at some update
    missing: dict[str, int] = field(default_factory=dict)  # of these: updates in a row without one
    nearly_gone: list[Ref[Any]] = field(default_factory=list)  # of those: told of at the next update without one
    last: dict[str, float] = field(default_factory=dict)  # norms at the last update
    listed: Sequence[str] | None = None  # their names, if none of them was 0
    gradients: tuple[int, list[int], list[int]] = (0, [], [])  # that the last update used: see `_look_for_twice`
    n_twice: int = 0  # updates in a row, from the first on, in which two backward passes began at one loss
    n_once: int = 0  # updates in a row that used losses and gradients once
    n_without: int = 0  # updates in a row without any gradient, after some with
    is_told: bool = False  # that one of several alike is called in the place of all
    n_calls: int = 0  # of the one that is used, of several alike
    of_many: tuple[str, str, int] | None = None  # one without a gradient, the one that has it, and how many have none
    listening: dict[str, Callable[[], None]] = field(default_factory=dict)  # for calls of modules of those that miss


@dataclass(slots=True)
class _Outside:
    """A parameter with a gradient that no optimizer holds. A program may update it by hand."""

    parameter: Ref[Any]  # an id may come again for another one
    step: int
    values: Any  # a sample
    gradient: Any  # a sample; None where it cannot be read


class Use(Observer[Observed]):
    """Writes a row for each parameter that dropped out of training, or was left out of it."""

    def __init__(self, context: Observed) -> None:
        super().__init__(context)
        self._is_due = schedule.parse("doubling")
        self._trained: defaultdict[int, _Trained] = defaultdict(_Trained)  # by id of its first parameter
        self._outside: dict[int, _Outside | None] = {}  # by id, in no optimizer; None: it was told, or moves
        self._left_out: dict[int, Ref[Any]] = {}  # by id: had a gradient outside while those that are held had theirs
        self._n_backward = 0  # for an update, at most
        self._n_backwards = 0  # of all updates
        self._n_updates = 0
        self._lines: set[tuple[str, int]] = set()  # that called backward before the first updates
        self._times_nothing: set[str] = set()  # parameters of which all that comes to the loss is multiplied by 0
        self._is_other = False  # another one has called the last of many backward passes without an update
        self._names: dict[str, Ref[Any]] = {}  # all of each parameter that an optimizer held -> the last such one
        self._named_for: tuple[int, Any] = -1, None  # generation of names and ids of an update, whose names are there
        self._looked_for = -1  # generation of names for which it was asked what has been replaced
        self._called: dict[str, bool] = {}  # parameters that miss gradients -> their module was called meanwhile

    def before_backward(self, roots: Sequence[Any]) -> None:
        """Note which line of the program wants gradients: first to train, and then, without updates, for what."""
        if self._n_updates < USUAL:
            self._lines.add(user_line())
        elif len(self.context.tape.microbatches) >= UNUSED - 1:
            self._is_other = user_line() not in self._lines
        for trained in self._trained.values():
            if trained.nearly_gone:
                alive = [p for ref in trained.nearly_gone if (p := ref()) is not None]
                self._times_nothing.update(map(self.context.label, self.context.framework.times_nothing(roots, alive)))

    def before_update(self, update: Update) -> None:
        """Gradients are final."""
        norms = update.check.grad_norms
        if not update.parameters or not update.check.is_finite:
            return
        held = self._trained.get(id(update.parameters[0]))
        if held is not None and held.used and not any(norms.values()):
            held.n_without += 1
            if held.n_without in (1, GONE_FOR) and update.microbatches:
                self._look_for_left_out(update, held)
        elif self._is_due(update.step) or self.context.audits.is_due(update.step):
            self._look_for_left_out(update)
        self._look_for_replaced(update)
        if not norms:
            return
        trained = self._trained[id(update.parameters[0])]
        trained.n_without = trained.n_without if not any(norms.values()) else 0
        self._look_for_twice(trained, update)
        self._follow(trained, norms, update)

    def _look_for_twice(self, trained: _Trained, update: Update) -> None:
        self._n_backward, self._n_updates = max(self._n_backward, len(update.microbatches)), self._n_updates + 1
        values = getattr(update.gradients, "values", None)  # in torch they are there without their parameters
        if values is None:
            values = [gradient for _, gradient in update.gradients]
        tensors = values[:: len(values) // TOLD_BY or 1]
        # An id may come again for another tensor; if nothing was gone back from since then, it has not.
        self._n_backwards += len(update.microbatches)
        used = (self._n_backwards, list(map(id, tensors)), self.context.framework.versions(tensors))
        before, trained.gradients = trained.gradients, used
        roots: list[int | None] = []
        for each in update.microbatches:
            roots += getattr(each, "roots", ())
        kind = number = ""
        if len(set(roots)) < len(roots):
            roots = [each for each in roots if each is not None]
        if len(set(roots)) < len(roots):
            kind, twice = "loss", next(slot for slot in roots if roots.count(slot) > 1)
            number = str(next(i for i, each in enumerate(update.microbatches) if twice in each.roots))
        elif before == used:
            kind = "gradients"
        if kind and trained.n_once >= USUAL:
            order = self.context.clock.next_order()
            row = number_row(SITE, USED_TWICE, update.step, order, 2.0, module=kind, call=trained.n_once)
            self.rows.append(replace(row, op=number))
        trained.n_twice = trained.n_twice + 1 if kind == "loss" else -(1 << 30)
        if trained.n_twice == FIRST:
            order = self.context.clock.next_order()
            self.rows.append(number_row(SITE, USED_TWICE, update.step, order, 2.0, module=ALL, call=FIRST))
        trained.n_once = -(1 << 30) if kind else trained.n_once + 1

    def _follow(self, trained: _Trained, norms: dict[str, float], update: Update) -> None:
        trained.n_updates += 1
        if trained.n_updates == LONG:
            self._look_for_unused(trained, update)
        elif trained.n_updates == EARLY:
            self._count_calls(trained, update)
        elif trained.of_many is not None:
            self._judge_calls(trained, update)
        names = update.check.names  # where it is there nobody needs to look at thousands of norms
        is_same = names is not None and names is trained.listed
        is_same = is_same or (norms.keys() == trained.last.keys() and min(norms.values()) > 0.0)
        is_as_before = is_same and not trained.missing
        trained.last, trained.listed = norms, names
        if is_as_before and trained.n_updates > 1:
            return
        alive = {name for name, norm in norms.items() if norm > 0.0}
        if trained.n_updates < LONG:
            trained.used |= alive
        if not alive:  # no part of the model has dropped out: the whole loss is 0, or nothing is trained at all
            trained.n_idle += 1
            if trained.n_idle == trained.n_updates == FIRST:
                order = self.context.clock.next_order()
                self.rows.append(number_row(SITE, NO_GRADIENT, update.step, order, FIRST, module=ALL, call=len(norms)))
            return
        if trained.n_updates == 1:
            trained.names = alive
            return
        gone = trained.names - alive
        if trained.n_updates <= FIRST:
            trained.names -= gone
            return
        for name in trained.missing.keys() - gone:  # it comes and goes
            trained.names.discard(name)
        trained.missing = {name: trained.missing.get(name, 0) + 1 for name in gone}
        parameters = {self.context.label(p): p for p in update.parameters} if gone else {}
        near = [name for name in gone if trained.missing[name] == GONE_FOR - 1 and name in parameters]
        trained.nearly_gone = [Ref(parameters[name]) for name in near]
        for name in sorted(gone):
            if trained.missing[name] == GONE_FOR // 2:
                self._listen(trained, name, parameters.get(name))
            elif trained.missing[name] >= GONE_FOR:
                trained.names.discard(name)
                del trained.missing[name]
                self._tell(name, parameters.get(name), update.step)
        for name in trained.listening.keys() - trained.missing.keys() - {""}:
            trained.listening.pop(name)()

    def _count_calls(self, trained: _Trained, update: Update) -> None:
        """Of several layers alike one has gradients and the others never had: is it called in their place?"""
        names = {self.context.label(p): p for p in update.parameters if p.requires_grad}
        pairs = [(name, other) for name in names if name not in trained.used if (other := _like(name, trained.used))]
        beside = [name for name, other in pairs if other == pairs[0][1]]
        owner = self.context.framework.owner(self.context.names.roots(), names.get(pairs[0][1])) if pairs else None
        if owner is None or len(beside) < LEAST_UNUSED:
            return

        def count(*_: Any) -> None:
            trained.n_calls += 1

        trained.of_many = beside[0], pairs[0][1], len(beside)
        trained.listening[""] = self.context.after_calls.add(owner, count)

    def _judge_calls(self, trained: _Trained, update: Update) -> None:
        """Tell if it was called once for itself and once for each of the others, in each micro-batch."""
        (name, other, n), trained.of_many = trained.of_many or ("", "", 0), None
        trained.listening.pop("")()
        if update.microbatches and trained.n_calls == (n + 1) * len(update.microbatches):
            order = self.context.clock.next_order()
            row = number_row(name, NEVER_USED, update.step, order, EARLY, module=other, call=n)
            self.rows.append(replace(row, names=(str(n + 1),)))
            trained.is_told = True

    def _look_for_unused(self, trained: _Trained, update: Update) -> None:
        """Experts that nothing was ever sent to, for one."""
        names = [self.context.label(p) for p in update.parameters if p.requires_grad]
        pairs = [(name, other) for name in names if name not in trained.used if (other := _like(name, trained.used))]
        if pairs and not trained.is_told:
            (name, other), order = pairs[0], self.context.clock.next_order()
            row = number_row(name, NEVER_USED, update.step, order, LONG, module=other, call=len(pairs))
            self.rows.append(row)

    def _listen(self, trained: _Trained, name: str, parameter: Any) -> None:
        """Is the module that it belongs to still called?"""
        owner = self.context.framework.owner(self.context.names.roots(), parameter)
        if owner is not None:
            trained.listening[name] = self.context.after_calls.add(owner, lambda *_: self._called.update({name: True}))

    def _tell(self, name: str, parameter: Any, step: int) -> None:
        if parameter is None:
            return
        is_called = self._called.pop(name, False)
        kind = FROZEN if not parameter.requires_grad else "" if is_called else NOT_CALLED
        kind = TIMES_NOTHING if name in self._times_nothing else kind
        if kind == NOT_CALLED and self.context.framework.is_merged(self.context.names.roots(), parameter):
            kind = MERGED
        order = self.context.clock.next_order()
        self.rows.append(number_row(name, NO_GRADIENT, step, order, GONE_FOR, module=kind))

    def at_end(self) -> None:
        """Nobody is listened to any more; what was computed since the last update is used by nobody.

        What other lines compute than those that train is for another purpose: an attack, the importance of weights.
        """
        n_unused = 0 if self._is_other else len(self.context.tape.microbatches)
        if self._n_updates > USUAL and n_unused >= max(UNUSED, UNUSED_TIMES * self._n_backward):
            step, order = self.context.clock.step, self.context.clock.next_order()
            self.rows.append(number_row(SITE, NOT_USED, step, order, n_unused, call=self._n_backward))
        for trained in self._trained.values():
            for stop in trained.listening.values():
                stop()

    def _look_for_replaced(self, update: Update) -> None:
        """Find what an optimizer held and the model has another one in place of, which asks for no gradient."""
        generation = getattr(self.context.names, "generation", 0)
        if generation == self._looked_for:
            return
        self._looked_for = generation
        known = [(name, p) for name, p in self.context.names.parameters() if name in self._names]
        frozen = [(name, p) for name, p in known if not p.requires_grad and self._names[name]() is not p]
        replaced = [name for name, p in frozen if _NUMBERS.search(str(p.dtype))]
        if 2 * len(replaced) < len(known):
            for name in replaced:
                del self._names[name]
                order = self.context.clock.next_order()
                self.rows.append(number_row(name, NO_GRADIENT, update.step, order, 1.0, module=REPLACED))

    def _look_for_left_out(self, update: Update, without: _Trained | None = None) -> None:
        """Find what gets a gradient and is in no optimizer.

        Args:
            without: of an optimizer that had gradients, and has none; what had one beside those is left out on purpose.
        """
        framework = self.context.framework
        if framework.optimizer(update.optimizer) is None:
            return
        trainable = [(name, p) for name, p in self.context.names.parameters() if p.requires_grad]
        having = set(map(id, framework.with_gradients(update, [p for _, p in trainable])))
        own = update.ids
        named_for = getattr(self.context.names, "generation", 0), own
        if named_for != self._named_for:  # the same at nearly all updates
            self._named_for = named_for
            refs = ((n, p, Ref(p)) for n, p in trainable if id(p) in own)
            self._names.update((name, ref) for n, p, ref in refs for name in self.context.names_of(p) or (n,))
        if having <= own:
            return
        named = [(name, p) for name, p in trainable if id(p) in having]
        held = {id(p): p for each in self.context.optimizers() for group in each.param_groups for p in group["params"]}
        inside = [] if without is not None else [name for name, p in named if id(p) in held]
        outside = [(name, p) for name, p in named if id(p) not in held and " " not in name]  # in it: of no module
        if without is not None:
            outside = [(name, p) for name, p in outside if (ref := self._left_out.get(id(p))) is None or ref() is not p]
        elif update.check.grad_norms:
            self._left_out.update((id(p), Ref(p)) for _, p in outside)
        if not outside or framework.has_copies(list(held.values())):
            return  # the optimizer holds copies of its own
        siblings = {name.rpartition(".")[0]: name for name in inside if "." in name}
        strangers, masters = self._strangers(update, {id(p) for _, p in trainable})
        is_empty = without is not None or (not inside and not update.check.grad_norms)  # it may hold what is not used
        is_part = len(inside) < len(outside) and not is_empty  # a small part is trained on purpose
        for name, parameter in outside:
            form = _form(parameter)
            if form[0] in masters:
                continue
            stranger = next((each for each in strangers if strangers[each] > 0 and _is_like(each, form)), form)
            last = self._names.get(name)  # of the optimizer before, it may have been left out on purpose
            is_new = last is not None and last() is not parameter
            replaced = name if is_new else STRANGER if strangers[stranger] > 0 else ""
            beside = NOTHING if is_empty else replaced
            strangers[stranger] -= 1
            step = None if is_part and not beside else self._since(parameter, update)
            if step is not None:
                beside = beside or siblings.get(name.rpartition(".")[0], "") or hole(name, inside)
                order, n_steps = self.context.clock.next_order(), update.step - step
                row = number_row(name, NOT_STEPPED, update.step, order, n_steps, module=beside, call=len(outside))
                if without is not None:
                    kind = type(framework.optimizer(update.optimizer)).__name__
                    row = replace(row, op=kind, names=(min(without.used),))
                self.rows.append(row)

    def _strangers(self, update: Update, known: set[int]) -> tuple[Counter[tuple[Any, ...]], set[tuple[int, ...]]]:
        """Tensors without a gradient that this optimizer holds and no model has, by shape and format.

        And the shapes of those that have one: copies that are updated in the place of a parameter.
        """
        others = [p for p in update.parameters if id(p) not in known]
        having = set(map(id, self.context.framework.with_gradients(update, others)))
        masters = {tuple(p.shape) for p in others if id(p) in having}
        return Counter(_form(p) for p in others if id(p) not in having), masters

    def _since(self, parameter: Any, update: Update) -> int | None:
        """The step at which it was first seen outside, once it is seen there with another gradient and has not moved.

        One gradient seen twice is left over from an optimizer that is gone, as of a client of federated averaging.
        """
        framework = self.context.framework
        values, gradient = framework.sample(parameter, ELEMENTS), framework.gradient(update, parameter)
        before = self._outside.get(id(parameter))
        if values is None or (before is None and id(parameter) in self._outside):
            return None
        if before is None or before.parameter() is not parameter:
            kept = None if gradient is None else framework.copied(gradient)
            self._outside[id(parameter)] = _Outside(Ref(parameter), update.step, framework.copied(values), kept)
            return None
        if before.gradient is not None and gradient is not None and bool((before.gradient == gradient).all()):
            return None
        self._outside[id(parameter)] = None
        return before.step if bool((before.values == values).all()) else None


def _form(parameter: Any) -> tuple[Any, ...]:
    return tuple(parameter.shape), parameter.dtype


def _is_like(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Return whether two forms are alike but for the length of one dimension: a head for another number of classes."""
    return (
        one[1] == other[1]
        and len(one[0]) == len(other[0])
        and sum(a != b for a, b in zip(one[0], other[0], strict=True)) <= 1
    )


def hole(name: str, inside: Sequence[str]) -> str:
    """The parameter of another layer that an optimizer holds, where this one alone is missing in its own layer.

    Who trains a few layers leaves out whole layers, and who trains a few parts leaves them out of every layer.

    Args:
        name: of a parameter that no optimizer holds.
        inside: those that one does.
    """
    parts = name.split(".")
    for place, part in enumerate(parts):
        layer = ".".join(parts[: place + 1]) + "."
        if part.isdigit() and any(each.startswith(layer) for each in inside):
            others = (each for each in inside if _without(each, place) == _without(name, place))
            if found := next(others, ""):
                return found
    return ""


def _like(name: str, others: Iterable[str]) -> str:
    """One that has the same place as this in another layer: another number stands in its name; "": there is none."""
    places = [place for place, part in enumerate(name.split(".")) if part.isdigit()]
    return next((each for each in others for at in places if _without(each, at) == _without(name, at)), "")


def _without(name: str, place: int) -> tuple[str, ...]:
    parts = name.split(".")
    return (*parts[:place], *parts[place + 1 :]) if len(parts) > place and parts[place].isdigit() else ()
