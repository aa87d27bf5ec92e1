"""Where manual pages come from: one shelf for each kind of thing that has them, its pages by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from hypocenter.catalogue import Broken
from hypocenter.checklist.items import loading, pages
from hypocenter.compare import fitting
from hypocenter.compare.pairing import chain
from hypocenter.detect import engine, group_engine
from hypocenter.diagnose import verdicts
from hypocenter.doctor import catalogue as doctor_catalogue
from hypocenter.doctor import settings
from hypocenter.doctor.over_ranks import pages as over_ranks
from hypocenter.manual import Manual, parse


def rules() -> dict[str, Manual]:
    """Pages of all rules by code."""
    over_ranks = {code: entry.manual for code, entry in group_engine.group_rules().items()}
    return dict(sorted({**engine.manuals(), **over_ranks}.items()))


def causes() -> dict[str, Manual]:
    """Pages of all causes by name."""
    return {name: cause.manual for name, cause in verdicts.causes().items()}


def fits() -> dict[str, Manual]:
    """Pages of all fits by name."""
    return {name: _page_of(entry.look) for name, entry in fitting.fits().items()}


def matchers() -> dict[str, Manual]:
    """Matchers by name, in the order of their chain; a page is one line."""
    return {entry.name: _page_of(entry.pair) for entry in chain.matchers()}


def items() -> dict[str, Manual]:
    """Pages of all items of the checklist by key, in the order of its groups."""
    return pages.pages(loading.load())


def checks() -> dict[str, Manual]:
    """Pages of the doctor's checks of a machine, and of those over the ranks of a job, by code."""
    return {**doctor_catalogue.manuals(), **over_ranks.manuals()}


def doctor_settings() -> dict[str, Manual]:
    """Pages of the settings that the doctor looks at, by code."""
    return settings.manuals()


SHELVES: Mapping[str, Callable[[], dict[str, Manual]]] = {
    "rule": rules, "cause": causes, "fit": fits, "matcher": matchers, "item": items,
    "check": checks, "setting": doctor_settings,
}  # fmt: skip
"""The kinds of things that `hypocenter explain` and `hypocenter list` know, by the word for one of them."""


def broken(kind: str) -> tuple[Broken, ...]:
    """Files of a kind that did not load; call after its pages were asked for."""
    catalogues = {
        "rule": (engine.CATALOGUE, group_engine.CATALOGUE), "cause": (verdicts.CATALOGUE,),
        "fit": (fitting.CATALOGUE,), "matcher": (chain.CATALOGUE,), "check": (doctor_catalogue.CATALOGUE,),
    }  # fmt: skip
    return tuple(one for catalogue in catalogues.get(kind, ()) for one in catalogue.broken)


def _page_of(function: Callable[..., object]) -> Manual:
    return parse(sys.modules[function.__module__].__doc__)
