"""One relation: what it changes and what must stay. Each is a file in `catalogue/`, found because it lies there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from hypocenter.catalogue import Catalogue
from hypocenter.manual import Manual, page_of
from hypocenter.relations.facts import Facts
from hypocenter.relations.parts import Parts
from hypocenter.relations.subject import Place, Ran, Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One change.

    Attributes:
        changed: other tensors for some inputs.
        parts: what of every output must stay.
        what: was changed, in words.
        whom: must not have noticed, in words.
        otherwise: changes of which one suffices: where it leaves its own parts alone, the inputs are laid out in
            another way, and nobody is accused.
        puts_in_order: makes outputs comparable with the unchanged ones, where their order was changed.
        keys: only of these outputs; empty: of all.
        is_embedded: only what embeddings look up is changed: a model may tell padding from the tokens themselves.
        only_if: a change that must leave its own parts alone; otherwise this one is not tried.
        excuse: of one in `otherwise`: what it means if this one holds; "": another layout.
    """

    changed: Mapping[Place, Tensor]
    parts: Parts
    what: str
    whom: str
    otherwise: tuple[Trial, ...] = ()
    puts_in_order: Callable[[Tensor], Tensor] | None = None
    keys: frozenset[Any] = frozenset()
    is_embedded: bool = False
    excuse: str = ""
    only_if: Trial | None = None


Asked = Callable[[Subject, Facts], Iterator[Trial]]
"""Gives the changes to try. Raises CannotTell where the relation cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One file of the catalogue.

    Attributes:
        order: the cheap and the telling first.
        is_left_out: what the modules with one of these class names do is an exception; their names are parts of names.
    """

    name: str
    code: str
    asks: Asked
    page: Manual
    order: int = 100
    exceptions: tuple[str, ...] = ()


RELATIONS: Catalogue[Relation] = Catalogue("hypocenter.relations.catalogue", "hypocenter.relations")


def relation(name: str, code: str, *, order: int = 100, exceptions: tuple[str, ...] = ()) -> Callable[[Asked], Asked]:
    """Register a relation.

    Args:
        name: by which a user knows it.
        code: of the rule that tells when it does not hold.
        order: of asking.
        exceptions: parts of class names of modules that break it by their definition.
    """

    def register(asks: Asked) -> Asked:
        entry = Relation(name=name, code=code, asks=asks, page=page_of(asks), order=order, exceptions=exceptions)
        RELATIONS.register(name, entry)
        return asks

    return register


def moved(trial: Trial, facts: Facts, now: Ran, before: Ran | None = None) -> float | None:
    """How far what must stay has moved; None: no output can be judged.

    Args:
        before: what to compare with. None: the unchanged forward of the facts.
    """
    before = facts.ran if before is None else before
    found: list[float] = []
    for key, old in before.outputs.items():
        new = now.outputs.get(key)
        if new is None or new.shape != old.shape or (trial.keys and key not in trial.keys):
            continue
        new = new.detach() if trial.puts_in_order is None else trial.puts_in_order(new.detach())
        size = trial.parts.moved(old, new)
        if key == facts.logits and facts.is_laid_out and size is not None:
            size = max(size, trial.parts.moved_first(old, new) or 0.0)
        if size is not None:
            found.append(size)
    return max(found) if found else None
