"""Ask all relations of one micro-batch; what does not hold is confirmed, and the first module that shows it is named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from hypocenter.nouns import Source
from hypocenter.relations.facts import CannotTell, Facts, facts_of
from hypocenter.relations.heard import Call
from hypocenter.relations.parts import Places
from hypocenter.relations.relation import RELATIONS, Relation, Trial, moved
from hypocenter.relations.subject import Ran, Subject
from hypocenter.replay.impossible import OutOfTime, ReplayImpossible

_SEED = 0x5EED


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
    """What came of it.

    Attributes:
        broken: relations that do not hold.
        held: those that were asked and hold.
        not_asked: the others, with the reason.
        notes: what was held still while inputs were changed.
        n_forwards: how many forwards it took.
    """

    broken: list[Broken] = field(default_factory=list[Broken])
    held: list[str] = field(default_factory=list[str])
    not_asked: dict[str, str] = field(default_factory=dict[str, str])
    notes: list[str] = field(default_factory=list[str])
    n_forwards: int = 0


class Excused(Exception):
    """It holds in the form in which it can be asked of this model; the form in words."""


def look(subject: Subject, relations: Iterable[Relation] | None = None) -> Looked:
    """Ask them, in their order."""
    looked = Looked()
    chosen = RELATIONS.in_order() if relations is None else list(relations)
    try:
        facts = facts_of(subject)
    except (CannotTell, ReplayImpossible) as why:
        looked.not_asked = {each.name: str(why) for each in chosen}
        return looked
    if subject.held.has_batch_norm:
        looked.notes.append("BatchNorm normalised with its averages: in training it mixes samples by definition")
    for each in chosen:
        try:
            with torch.enable_grad():
                broken = _ask(each, subject, facts)
        except OutOfTime:
            raise
        except Excused as form:
            looked.held.append(each.name)
            looked.notes.append(str(form))
        except (CannotTell, ReplayImpossible) as why:
            looked.not_asked[each.name] = str(why)
        except Exception as error:  # of the user's model: it refuses these inputs
            looked.not_asked[each.name] = f"the model refuses changed inputs ({type(error).__name__}: {str(error)[:120]})"
        else:
            if broken is None:
                looked.held.append(each.name)
            else:
                looked.broken.append(broken)
    looked.n_forwards = subject.n_forwards
    return looked


def _ask(relation: Relation, subject: Subject, facts: Facts) -> Broken | None:
    is_judged = False
    for trial in relation.asks(subject, facts):
        if trial.only_if is not None:
            first = _moved(trial.only_if, facts.ran, _with(subject, trial.only_if))
            if first is None or first > facts.tolerance:
                continue
        size = _moved(trial, facts.ran, _with(subject, trial))
        if size is None:
            continue
        is_judged = True
        if size > facts.tolerance:
            return _confirmed(relation, trial, size, subject, facts)
    if not is_judged:
        raise CannotTell("no output shows its samples and places")
    return None


def _with(subject: Subject, trial: Trial, *, keeps: bool = False, is_evaluated: bool = False) -> Ran:
    return subject.run(trial.changed, keeps=keeps, is_evaluated=is_evaluated, is_embedded=trial.is_embedded)


def _moved(trial: Trial, before: Ran, now: Ran) -> float | None:
    size = moved(trial, before, now)
    if not trial.counts or not before.losses:
        return size
    losses = [
        float((b - a).norm() / (a.norm() + 1e-30))
        for a, b in zip(before.losses, (v.detach() for v in now.losses), strict=True)
    ]
    return max([*losses, *([] if size is None else [size])])


def _confirmed(relation: Relation, trial: Trial, size: float, subject: Subject, facts: Facts) -> Broken:
    """It is neither noise nor another layout, nor what is drawn at random.

    Raises:
        CannotTell: it may be.
    """
    again = _moved(replace(trial, puts_in_order=None), facts.ran, subject.run())
    if again is None or again > facts.tolerance or 10 * again > size:
        raise CannotTell("the same inputs give other outputs each time")
    for other in trial.otherwise:
        instead = _moved(other, facts.ran, _with(subject, other))
        if instead is not None and instead <= facts.tolerance:
            if other.excuse:
                raise Excused(other.excuse)
            raise CannotTell(f"its inputs may be laid out otherwise: {other.what} leaves {other.whom} as they are")
    draws = _moved(replace(trial, puts_in_order=None), facts.ran, subject.run(seed=_SEED))
    is_evaluated = draws is None or draws > facts.tolerance
    if is_evaluated:
        before = subject.run(is_evaluated=True)
        evaluated = _moved(trial, before, _with(subject, trial, is_evaluated=True))
        if evaluated is None or evaluated <= facts.tolerance:
            raise CannotTell("the model draws random numbers that could not be held")
    before = subject.run(keeps=True, is_evaluated=is_evaluated).calls
    after = _with(subject, trial, keeps=True, is_evaluated=is_evaluated).calls
    call, source, is_near = _first(before, after, trial, facts.tolerance)
    name, kind = ("", "") if call is None else call.module if call.is_end else call.around
    exception = next((each for each in relation.exceptions if each in kind), "")
    if is_near and "Conv" in relation.exceptions:
        exception = exception or "only places next to the padding move: a window that reaches over its edge"
    if "BatchNorm" in relation.exceptions and subject.held.has_own_statistics:
        exception = exception or "BatchNorm"
    return Broken(
        relation=relation.name, code=relation.code, module=name, kind=kind, source=source, size=size,
        limit=facts.tolerance, what=trial.what, whom=trial.whom, exception=exception,
    )  # fmt: skip


def _first(
    before: list[Call], after: list[Call], trial: Trial, tolerance: float
) -> tuple[Call | None, Source | None, bool]:
    """The first call that shows it, the line of the code around it, and whether only what is near has moved."""
    for old, new in zip(before, after, strict=False):
        if (old.is_end, old.module) != (new.is_end, new.module):
            return old, None if old.is_end else old.source, False
        for port, value in old.values.items():
            now = new.values.get(port)
            if now is None or now.shape != value.shape:
                continue
            now = now if trial.puts_in_order is None else trial.puts_in_order(now)
            size = trial.parts.moved(value, now)
            if size is not None and size > tolerance:
                is_near = isinstance(trial.parts, Places) and trial.parts.is_near(value, now, tolerance)
                return old, None if old.is_end else old.source, is_near
    return None, None, False
