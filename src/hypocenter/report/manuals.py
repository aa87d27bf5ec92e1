"""Where the manual pages of rules and causes come from, by name."""

from __future__ import annotations

from hypocenter.catalogue import Broken
from hypocenter.detect import engine, group_engine
from hypocenter.diagnose import verdicts
from hypocenter.manual import Manual


def rules() -> dict[str, Manual]:
    """Pages of all rules by code."""
    over_ranks = {code: entry.manual for code, entry in group_engine.group_rules().items()}
    return dict(sorted({**engine.manuals(), **over_ranks}.items()))


def causes() -> dict[str, Manual]:
    """Pages of all causes by name."""
    return {name: cause.manual for name, cause in verdicts.causes().items()}


def broken() -> tuple[Broken, ...]:
    """Rule and cause files that did not load; call after `rules` and `causes`."""
    return (*engine.CATALOGUE.broken, *group_engine.CATALOGUE.broken, *verdicts.CATALOGUE.broken)
