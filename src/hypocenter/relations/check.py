"""Ask all relations of one micro-batch; confirm what does not hold, and name the first module that shows it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from hypocenter.nouns import Source
from hypocenter.relations.dispatched import LEFT_OUT, are_left_out
from hypocenter.relations.evaluation import EVALUATED, evaluation
from hypocenter.relations.facts import CannotTell, Facts, facts_of
from hypocenter.relations.heard import Call
from hypocenter.relations.left_on import left_on
from hypocenter.relations.losses import Found, OfLoss, look_at_loss
from hypocenter.relations.parts import Places, Whole
from hypocenter.relations.relation import Note, Relation, Trial, asked_in_runs, moved
from hypocenter.relations.subject import Ran, Subject, Way
from hypocenter.replay.impossible import OutOfTime, ReplayImpossible

_SEED = 0x5EED
SUSPICION = 4  # times the time, to confirm what does not hold
_STRETCHED = 1.25  # times what a module keeps: does it matter?
_OF_ROWS = ("samples", "order")  # relations
_EXACT = 1e-6  # relative: what does not depend on it at all, of the same shapes, in any format


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A relation that does not hold.

    Attributes:
        relation: its name.
        code: of its rule.
        module: path of the first module that shows it, "" for the model itself.
        kind: its class.
        source: the line in it before which it happened, if it is in its own code.
        size: how far what had to stay moved, relative to its usual size.
        limit: how far it may.
        what: was changed.
        whom: noticed it.
        exception: what it is by definition, in words; "": none.
    """

    relation: str
    code: str
    module: str = ""
    kind: str = ""
    source: Source | None = None
    size: float
    limit: float
    what: str
    whom: str
    exception: str = ""


@dataclass(slots=True, kw_only=True)
class Looked:
    """What came of asking the relations.

    Attributes:
        broken: relations that do not hold.
        held: those that were asked and hold.
        not_asked: the others, with the reason.
        notes: what was held still while inputs were changed.
        n_forwards: how many forwards of the whole batch it took.
        no_time: those of them for which there was no time.
        losses: what is wrong with its loss, or with a backward of the program's own.
        n_rows: samples in it; 0: not known.
    """

    broken: list[Broken] = field(default_factory=list[Broken])
    held: list[str] = field(default_factory=list[str])
    not_asked: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    n_forwards: int = 0
    no_time: list[str] = field(default_factory=list[str])
    losses: list[Found] = field(default_factory=list[Found])
    n_rows: int = 0


class Excused(Exception):
    """The relation holds in the form in which it can be asked of this model; the message describes that form."""


def look(
    subject: Subject, relations: Iterable[Relation] | None = None, *, with_losses: bool = True,
    held: Collection[str] = (),
) -> Looked:  # fmt: skip
    """Ask the relations in their order as long as there is time, after a look at the loss.

    Args:
        held: names of relations that held before: for others that need these, where they are not asked first.
    """
    chosen = asked_in_runs() if relations is None else list(relations)
    looked = Looked()
    try:
        _look(subject, chosen, looked, with_losses=with_losses, held=held)
    except (CannotTell, ReplayImpossible) as why:
        told = _told(looked)
        left = [each.name for each in chosen if each.name not in told]
        looked.not_asked |= dict.fromkeys(left, str(why))
        looked.no_time = left if isinstance(why, OutOfTime) else []
    looked.n_forwards = math.ceil(subject.n_forwards)
    return looked


def _told(looked: Looked) -> set[str]:
    return {*looked.held, *looked.not_asked, *(each.relation for each in looked.broken)}


def _look(
    subject: Subject, chosen: list[Relation], looked: Looked, *, with_losses: bool, held: Collection[str]
) -> None:
    of_loss = OfLoss(subject) if with_losses else None
    try:
        facts = facts_of(subject, of_loss)
    except CannotTell:
        if of_loss is not None:
            looked.losses = look_at_loss(subject, of_loss, None)
        raise
    looked.n_rows = facts.n_rows
    if of_loss is not None:
        looked.losses = look_at_loss(subject, of_loss, facts)
    if subject.held.has_batch_norm:
        looked.notes.append("BatchNorm normalised with its averages: in training it mixes samples by definition")
    for each in chosen:
        try:
            known = {*looked.held, *held} - (_told(looked) - {*looked.held})
            if lacking := next((name for name in each.needs if name not in known), ""):
                raise CannotTell(f"{lacking} is not known to hold")
            broken = _ask(each, subject, facts, looked.notes)
        except (OutOfTime, torch.OutOfMemoryError):
            raise
        except Excused as form:
            looked.held.append(each.name)
            looked.notes.append(str(form))
        except (CannotTell, ReplayImpossible) as why:
            looked.not_asked[each.name] = str(why)
        except Exception as error:  # of the user's model: it refuses these inputs
            what = f"{type(error).__name__}: {str(error)[:120]}"
            looked.not_asked[each.name] = f"the model refuses changed inputs ({what})"
        else:
            if broken is None:
                looked.held.append(each.name)
            else:
                looked.broken.append(broken)
    if with_losses and facts.evaluation is not None:
        for wrong, module, source in left_on(facts.evaluation.dropped):
            looked.losses.append(Found(code="HC267", wrong=wrong, module=subject.name(module) or "", source=source))


def _ask(relation: Relation, subject: Subject, facts: Facts, notes: list[str]) -> Broken | None:
    is_judged = not relation.code
    for trial in relation.asks(subject, facts):
        if isinstance(trial, Note):
            notes.append(trial.text + (_where(trial.between, subject, facts) if trial.between else ""))
            continue
        if trial.only_if is not None:
            first = moved(trial.only_if, facts, _with(subject, trial.only_if))
            if first is None or first > _EXACT:
                continue
        trial.then(ran := _with(subject, trial))
        if (size := moved(trial, facts, ran)) is None:
            continue
        is_judged = True
        if size <= max(trial.least, facts.tolerance):
            continue
        if not trial.singly:
            return _confirmed(relation, trial, size, ran, subject, facts)
        for each in trial.singly:
            size = moved(each, facts, now := _with(subject, each))
            if size is not None and size > max(each.least, facts.tolerance):
                return _confirmed(relation, each, size, now, subject, facts)
    if not is_judged:
        raise CannotTell("no output shows its samples and places")
    return None


def _with(subject: Subject, trial: Trial, *, keeps: bool = False, way: Way | None = None) -> Ran:
    way = trial.way if way is None else way
    return subject.run(
        trial.changed, keeps=keeps, way=way, rows=trial.rows, is_embedded=trial.is_embedded, taken=trial.taken
    )


def _confirmed(relation: Relation, trial: Trial, size: float, ran: Ran, subject: Subject, facts: Facts) -> Broken:
    """Return the relation as broken, once noise, another layout and random draws are ruled out.

    Args:
        ran: the forward with the change, which moved what had to stay by `size`.

    Raises:
        CannotTell: it may be.
    """
    subject.limit_s, limit = subject.limit_s * SUSPICION, max(trial.least, facts.tolerance)
    for other in trial.otherwise:
        is_same = other.changed is trial.changed and other.way == trial.way and other.rows is trial.rows
        is_same = is_same and other.taken is trial.taken
        instead = moved(other, facts, ran if is_same else _with(subject, other))
        if instead is not None and instead <= limit:
            if other.excuse:
                raise Excused(other.excuse)
            raise CannotTell(f"its inputs may be laid out otherwise: {other.what} leaves {other.whom} as they are")
    facts.kept.clear()  # what changes from time to time is asked each time
    again = moved(replace(trial, aligns=None), facts, _kept(trial.way, subject, facts))
    if again is None or again > limit or 10 * again > size:
        raise CannotTell("the same inputs give other outputs each time")
    other_draws = _drawn_otherwise(trial.way, subject, facts)
    draws = moved(replace(trial, aligns=None), facts, other_draws)
    is_moved_about = trial.aligns is not None  # then what is drawn for each sample is another's
    way = trial.way
    if draws is None or draws > limit or (is_moved_about and (other_draws.has_drawn or subject.has_own_generators)):
        way = EVALUATED
        if is_moved_about and evaluation(subject, facts).has_drawn:
            raise CannotTell("the model draws random numbers in evaluation, too")
        evaluated = moved(trial, facts, _with(subject, trial, way=way), evaluation(subject, facts).ran)
        if evaluated is None or evaluated <= limit:
            raise CannotTell("the model draws random numbers that could not be held")
    told: dict[str, Any] = {"relation": relation.name, "code": relation.code, "size": size, "limit": limit}
    if not trial.is_located:
        return Broken(**told, kind=type(subject.modules[-1]).__name__, what=trial.what, whom=trial.whom)
    exception, unless = trial.exception, trial.unless
    if unless is not None and (shown := moved(unless, facts, _with(subject, unless, way=way))) and shown > limit:
        exception = ""
    trial = next((other for other in trial.otherwise if other.is_narrower), trial)
    before = _kept(way, subject, facts)
    after = _with(subject, trial, keeps=True, way=way)
    call, source, is_near = _first(before.calls, after.calls, trial, limit)
    name, kind = ("", "") if call is None else call.module if call.is_end else call.around
    exception = exception or _kept_of_batch(name, before, after)
    exception = exception or _kept_in_attribute(name, before, after, trial, way, subject, facts)
    exception = exception or next((each for each in relation.exceptions if each in kind), "")
    if not exception and relation.name in _OF_ROWS and call is not None:
        exception = LEFT_OUT * _are_left_out(call, before.calls, after.calls, trial, limit)
    if is_near and "Conv" in relation.exceptions:
        exception = exception or "only places next to the padding move: a window that reaches over its edge"
    if subject.held.has_own_statistics and "BatchNorm" in kind:
        exception = "BatchNorm without averages: it mixes samples by definition"
    return Broken(**told, module=name, kind=kind, source=source, what=trial.what, whom=trial.whom, exception=exception)


def _kept(way: Way, subject: Subject, facts: Facts) -> Ran:
    """Repeat the unchanged forward while keeping all calls; the result of the last `way` is reused by all relations."""
    if way not in facts.kept:
        facts.kept = {way: subject.run(keeps=True, way=way)}
    return facts.kept[way]


def _drawn_otherwise(way: Way, subject: Subject, facts: Facts) -> Ran:
    """Run the unchanged forward with other random numbers, once for all relations."""
    way = replace(way, seed=_SEED)
    if way not in facts.other_draws:
        facts.other_draws[way] = subject.run(way=way)
    return facts.other_draws[way]


def _kept_of_batch(module: str, before: Ran, after: Ran) -> str:
    """Return a phrase that names a buffer in which this module, or one inside, keeps a statistic of its batch; "":
    none."""
    for name, was in before.buffers.items():
        now = after.buffers.get(name)
        if name.startswith(f"{module}.") and now is not None and not (was.shape == now.shape and torch.equal(was, now)):
            return f"it keeps a statistic of its batch in a buffer, {name.lstrip('.')}"
    return ""


def _kept_in_attribute(
    module: str, before: Ran, after: Ran, trial: Trial, way: Way, subject: Subject, facts: Facts
) -> str:
    """Return the same of a plain attribute of this module itself, on whose value before the outputs depend."""
    for name, was in before.attributes.items():
        now, is_of_rows = after.attributes.get(name), facts.n_rows in was.shape
        is_changed = now is not None and was.shape == now.shape and not torch.equal(was, now)
        if name.rpartition(".")[0] == module and was.is_floating_point() and is_changed and not is_of_rows:
            with subject.with_attribute(name, _STRETCHED * was):
                ran = subject.run(way=way)
            shown = moved(replace(trial, aligns=None), facts, ran, before)
            if shown is not None and shown > max(trial.least, facts.tolerance):
                return f"it keeps a statistic of its batch in an attribute, {name.lstrip('.')}"
    return ""


def _where(between: tuple[Way, Way], subject: Subject, facts: Facts) -> str:
    """Return the first module that differs between two ways of a forward, as the end of a sentence; "": none."""
    made = {way: _kept(way, subject, facts).calls for way in sorted(between, key=lambda way: way not in facts.kept)}
    before, after = (made[way] for way in between)
    call, source, _ = _first(before, after, Trial(changed={}, parts=Whole(), what="", whom=""), facts.tolerance)
    name, kind = ("", "") if call is None else call.module if call.is_end else call.around
    line = "" if source is None else f", before {source.file}:{source.line}"
    return f", first in {name or 'the model itself'} ({kind}){line}" if kind else ""


def _first(
    before: list[Call], after: list[Call], trial: Trial, tolerance: float
) -> tuple[Call | None, Source | None, bool]:
    """Find the first call that has moved, the line just before it, and whether only places near the change moved."""
    pairs = list(zip(before, after, strict=False))
    same = next((i for i, (o, n) in enumerate(pairs) if (o.is_end, o.module) != (n.is_end, n.module)), len(pairs))
    begins, around = _nested([old for old, _ in pairs])
    ends = {begin: end for end, begin in begins.items()}
    for i, (old, new) in enumerate(pairs[:same]):
        shown = [v for port, v in old.values.items() if _has_moved(port, old, new, trial, tolerance)]
        if not shown and i in begins:  # as it came in it was laid out as it went out
            shown = _moved_inside(pairs[begins[i]], (old, new), trial, tolerance)
        if shown and not _is_undone(around[i], around, ends, pairs, trial, tolerance):
            port = next(port for port, value in old.values.items() if value is shown[0])
            parts = trial.parts if trial.aligns is None else None
            is_near = isinstance(parts, Places) and parts.is_near(shown[0], new.values[port], tolerance)
            return old, None if old.is_end else old.source, is_near
    if same < len(pairs):
        old = pairs[same][0]
        return old, None if old.is_end else old.source, False
    return None, None, False


def _are_left_out(call: Call, before: list[Call], after: list[Call], trial: Trial, limit: float) -> bool:
    """Return whether what this call shows is explained by what the module around it, or itself, has left out."""
    at = next(i for i, each in enumerate(before) if each is call)
    begins, around = _nested(before[: at + 1])
    start = begins.get(at, around[at])
    part = slice(start or 0, at + 1)
    is_same = [(a.is_end, a.module) for a in before[part]] == [(b.is_end, b.module) for b in after[part]]
    return is_same and are_left_out(before[part], after[part], trial, limit)


def _nested(calls: list[Call]) -> tuple[dict[int, int], list[int | None]]:
    """Return where the call of each end began, and for each call where the call around it began (None: outermost)."""
    begins: dict[int, int] = {}
    around: list[int | None] = []
    stack: list[int] = []
    for i, call in enumerate(calls):
        if call.is_end and stack:
            begins[i] = stack.pop()
        around.append(stack[-1] if stack else None)
        if not call.is_end:
            stack.append(i)
    return begins, around


def _has_moved(port: str, old: Call, new: Call, trial: Trial, tolerance: float) -> bool:
    size = _size(old, new, port, trial)
    return size is not None and size > tolerance


def _size(old: Call, new: Call, port: str, trial: Trial) -> float | None:
    now = new.values.get(port)
    pair = None if now is None else trial.aligned(old.values[port], now)
    return None if pair is None else trial.parts.moved(*pair)


def _moved_inside(begin: tuple[Call, Call], end: tuple[Call, Call], trial: Trial, tolerance: float) -> list[Tensor]:
    """Return outputs with the shape of an unmoved input that have themselves moved when laid out in the same way."""
    if trial.aligns is not None:
        return []
    held = {
        value.shape
        for port, value in begin[0].values.items()
        if (now := begin[1].values.get(port)) is not None and now.shape == value.shape
        and trial.parts.moved_first(value, now) == 0.0
    }  # fmt: skip
    return [
        value
        for port, value in end[0].values.items()
        if value.shape in held and (now := end[1].values.get(port)) is not None and now.shape == value.shape
        and (trial.parts.moved_first(value, now) or 0.0) > tolerance
    ]  # fmt: skip


def _has_moved_first(old: Call, new: Call, trial: Trial, tolerance: float) -> bool:
    if trial.aligns is not None:
        return False
    pairs = [(value, new.values[port]) for port, value in old.values.items() if port in new.values]
    sizes = [trial.parts.moved_first(value, now) for value, now in pairs if value.shape == now.shape]
    return any(size is not None and size > tolerance for size in sizes)


def _is_undone(
    begin: int | None, around: list[int | None], ends: dict[int, int], pairs: list[tuple[Call, Call]], trial: Trial,
    tolerance: float,
) -> bool:  # fmt: skip
    """Return whether an enclosing call gives an unmoved output: inside, data was only laid out differently
    (experts)."""
    while begin is not None:
        if begin in ends:
            old, new = pairs[ends[begin]]
            sizes = [size for port in old.values if (size := _size(old, new, port, trial)) is not None]
            if sizes and max(sizes) <= tolerance and not _has_moved_first(old, new, trial, tolerance):
                return True
        begin = around[begin]
    return False
