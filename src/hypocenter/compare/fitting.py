"""The catalogue of fits: each file of `fits/` is one hypothesis about a difference, `fit(case) -> Fit | None`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypocenter.catalogue import Catalogue
from hypocenter.compare.comparison import Fit
from hypocenter.errors import UnknownNameError
from hypocenter.nouns import CAUSES

if TYPE_CHECKING:
    from hypocenter.compare.case import Case

CATALOGUE: Catalogue[Hypothesis] = Catalogue("hypocenter.compare.fits", "hypocenter.fits")
ENOUGH = 0.9  # of the difference that a fit must explain to be taken
_CONFIDENCE = ("proven", "likely", "possible")

Look = Callable[["Case"], Fit | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """One entry of the catalogue of fits: its name and the function that looks at a case."""

    name: str
    look: Look
    is_last: bool = False  # asked only when no other fit explains the difference


def fit(name: str, *, last: bool = False) -> Callable[[Look], Look]:
    """Register a fit under the name of its file, with dashes: `@fit("norm-eps")` in `fits/norm_eps.py`.

    Args:
        last: it is asked only when no other fit explains the difference.
    """
    return CATALOGUE.adding(name, lambda look: Hypothesis(name=name, look=look, is_last=last))


def fits(plugins: Iterable[str] = ()) -> dict[str, Hypothesis]:
    """Load all fits, those of plugins too, and return them by name."""
    CATALOGUE.load(plugins)
    return CATALOGUE.entries()


def accepted(case: Case, plugins: Iterable[str] = ()) -> list[Fit]:
    """Return the fits that explain the difference, best first: by confidence, then by how much each explains.

    A fit that raises is listed as broken, never fatal; so is one whose cause is not in the vocabulary.
    """
    found: list[Fit] = []
    for entry in sorted(fits(plugins).values(), key=lambda entry: entry.is_last):
        if entry.is_last and found:
            break
        try:
            one = entry.look(case)
            if one is not None and one.cause not in CAUSES:
                raise UnknownNameError(f"{one.cause!r} is not in the vocabulary of causes", where=entry.name)
        except Exception as error:  # a stranger's code: a fit that fails explains nothing
            CATALOGUE.report(entry.name, error)
            continue
        if one is not None and one.explained > ENOUGH:
            found.append(one)
    return sorted(found, key=lambda one: (_CONFIDENCE.index(one.confidence), -one.explained, one.name))
