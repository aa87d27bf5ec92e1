"""One relation: what it changes and what must stay. Each is a file in `catalogue/`, found because it lies there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from hypocenter.catalogue import Catalogue
from hypocenter.manual import Manual, page_of
from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import Parts
from hypocenter.relations.subject import AS_IT_WAS, Place, Ran, Subject, Way
from hypocenter.replay.batch_rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change of the inputs, and what must not notice it.

    Attributes:
        changed: other tensors for some inputs.
        parts: what of every output must stay.
        what: was changed, in words.
        whom: must not have noticed, in words.
        otherwise: changes of which one suffices: where it leaves its own parts alone, the inputs are laid out in
            another way, and nobody is accused.
        rows: the samples to run; None: all, as they are.
        aligns: makes an unchanged output and a new one comparable, where rows were chosen or their order was changed;
            None of what cannot be compared.
        keys: only of these outputs; empty: of all.
        is_embedded: only what embeddings look up is changed: a model may tell padding from the tokens themselves.
        only_if: a change that must leave its own parts alone; otherwise this one is not tried.
        excuse: of one in `otherwise`: what it means if this one holds; "": another layout.
        is_narrower: of one in `otherwise`: it changes less, and says where what is wrong shows first.
        exception: what it is by definition that this does not hold; "": it must.
        unless: a change after which nobody is excused: where it moves its own parts, the exception is none.
        way: how the forward with the change is done.
        before: what to compare with; None: the unchanged forward.
        least: how far what must stay may move, if that is more than usual.
        is_located: the first module that shows it is looked for: all before it must stay as well.
        then: told what came of it.
        taken: see `Subject.run`.
        singly: the changes of which this one is made: where it moves what must stay, each is asked for itself, and it
            is these that are judged.
    """

    changed: Mapping[Place, Tensor]
    parts: Parts
    what: str
    whom: str
    otherwise: tuple[Trial, ...] = ()
    rows: Rows | None = None
    aligns: Callable[[Tensor, Tensor], tuple[Tensor, Tensor] | None] | None = None
    keys: frozenset[Any] = frozenset()
    is_embedded: bool = False
    excuse: str = ""
    is_narrower: bool = False
    exception: str = ""
    only_if: Trial | None = None
    unless: Trial | None = None
    way: Way = AS_IT_WAS
    before: Ran | None = None
    least: float = 0.0
    is_located: bool = True
    then: Callable[[Ran], None] = lambda _: None
    taken: Tensor | None = None
    singly: tuple[Trial, ...] = ()

    def aligned(self, old: Tensor, new: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return both in the same order and shape; None if they cannot be compared."""
        if self.aligns is not None:
            return self.aligns(old, new)
        return (old, new) if old.shape == new.shape else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A fact that is worth knowing, but breaks no relation.

    Attributes:
        text: in words.
        between: two ways to run it, whose first module that differs is told as well.
    """

    text: str
    between: tuple[Way, Way] | None = None


Asked = Callable[[Subject, Facts], Iterator[Trial | Note]]
"""Gives the changes to try, and what was noticed. Raises CannotTell where the relation cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A relation of the catalogue: one file.

    Attributes:
        order: the cheap and the telling first.
        exceptions: what modules whose class names contain one of these do is an exception.
        needs: names of relations that must have held, to be asked at all.
        is_on_request: it takes more memory than the step has taken, and is asked only where a user names it.
    """

    name: str
    code: str
    asks: Asked
    page: Manual
    order: int = 100
    exceptions: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    is_on_request: bool = False


PARTS_OF_SAMPLES = "ranks hold parts of the same samples"
RELATIONS: Catalogue[Relation] = Catalogue("hypocenter.relations.catalogue", "hypocenter.relations")


def asked_in_runs() -> list[Relation]:
    """Return the relations that are asked without being named, in their order."""
    return [each for each in RELATIONS.in_order() if not each.is_on_request]


def relation(
    name: str, code: str = "", *, order: int = 100, exceptions: tuple[str, ...] = (), needs: tuple[str, ...] = (),
    is_on_request: bool = False,
) -> Callable[[Asked], Asked]:  # fmt: skip
    """Return a decorator that registers a relation.

    Args:
        name: by which a user knows it.
        code: of the rule that tells when it does not hold; "": it only makes notes.
        order: of asking.
        exceptions: parts of class names of modules that break it by their definition.
        needs: names of relations that must have held.
        is_on_request: only where a user names it.
    """

    def register(asks: Asked) -> Asked:
        entry = Relation(
            name=name, code=code, asks=asks, page=page_of(asks), order=order, exceptions=exceptions, needs=needs,
            is_on_request=is_on_request,
        )  # fmt: skip
        RELATIONS.register(name, entry)
        return asks

    return register


def on_all_ranks(told: Trial, taken: Tensor, subject: Subject) -> list[Trial]:
    """Return the same change of samples on every rank, if others compute together with this one.

    Where ranks hold parts of the same samples (of a text, of features), a sample is changed on all of them.
    """
    return [] if subject.lead is None else [replace(told, taken=taken, excuse=PARTS_OF_SAMPLES)]


def moved(trial: Trial, facts: Facts, now: Ran, before: Ran | None = None) -> float | None:
    """Return how far what must stay has moved; None if no output can be judged.

    Args:
        before: what to compare with. None: what the trial says.
    """
    before = before or trial.before or facts.ran
    found: list[float] = []
    for key in facts.ran.outputs:
        old, new = before.outputs.get(key), now.outputs.get(key)
        if old is None or new is None or (trial.keys and key not in trial.keys):
            continue
        if (pair := trial.aligned(old, new)) is None:
            continue
        size = trial.parts.moved(*pair)
        if key == facts.logits and facts.is_laid_out and size is not None:
            size = max(size, trial.parts.moved_first(*pair) or 0.0)
        if size is not None:
            found.append(size)
    return max(found) if found else None
