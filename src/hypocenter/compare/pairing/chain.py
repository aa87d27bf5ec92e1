"""The chain of matchers: each is one file in `compare/matchers`, takes what those before left, and gives pairs.

@matcher("exact", order=20)
def pair(task: Task) -> Iterable[Pair]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from hypocenter.catalogue import Catalogue
from hypocenter.compare.comparison import Pair, SiteCard
from hypocenter.compare.pairing.manual_map import ManualMap
from hypocenter.record.facts_file import Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a matcher sees: all spots, what is paired already, and what is left."""

    baseline: tuple[SiteCard, ...]  # left over, in execution order
    candidate: tuple[SiteCard, ...]
    all_baseline: tuple[SiteCard, ...]
    all_candidate: tuple[SiteCard, ...]
    pairs: tuple[Pair, ...] = ()
    manual: ManualMap | None = None
    baseline_facts: Facts | None = None
    candidate_facts: Facts | None = None


Match = Callable[[Task], Iterable[Pair]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """One file of the catalogue. `order`: its place in the chain."""

    name: str
    order: int
    pair: Match


CATALOGUE: Catalogue[Matcher] = Catalogue("hypocenter.compare.matchers", "hypocenter.matchers")


def matcher(name: str, *, order: int) -> Callable[[Match], Match]:
    """Register a function as a matcher. The built-in ones stand at 10, 20, 30, 40 and 50.

    Raises:
        UnknownNameError: the name is taken.
    """
    return CATALOGUE.adding(name, lambda pair: Matcher(name=name, order=order, pair=pair))


def matchers(plugins: Iterable[str] = ()) -> list[Matcher]:
    """Return all matchers, those of plugins too, in the order of the chain."""
    CATALOGUE.load_asked(plugins)
    return CATALOGUE.in_order()
