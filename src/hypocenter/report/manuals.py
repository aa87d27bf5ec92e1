"""Where the manual pages of rules and causes come from, by name."""

from __future__ import annotations

from hypocenter.catalogue import Broken
from hypocenter.detect import engine
from hypocenter.diagnose import verdicts
from hypocenter.manual import Manual


def rules() -> dict[str, Manual]:
    """Pages of all rules by code."""
    return engine.manuals()


def causes() -> dict[str, Manual]:
    """Pages of all causes by name."""
    return {name: cause.manual for name, cause in verdicts.causes().items()}


def broken() -> tuple[Broken, ...]:
    """Rule and cause files that did not load; call after `rules` and `causes`."""
    return (*engine.CATALOGUE.broken, *verdicts.CATALOGUE.broken)
