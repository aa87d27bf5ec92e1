"""Which framework's rules put together the entries of a file: a module of frameworks/ by the name of the table."""

from __future__ import annotations

from collections.abc import Callable

from hypocenter.catalogue import Catalogue
from hypocenter.checklist.entry import Given
from hypocenter.checklist.sheet import Part, Sheet
from hypocenter.checklist.tables import table

Settle = Callable[[Sheet], None]
FRAMEWORKS: Catalogue[Settle] = Catalogue("hypocenter.checklist.frameworks", "hypocenter.configuration_frameworks")


def framework(name: str) -> Callable[[Settle], Settle]:
    """Register a function as the rules of the table of this name."""

    def register(settle: Settle) -> Settle:
        FRAMEWORKS.register(name, settle)
        return settle

    return register


def settle(given: Given) -> Part:
    """The settings that the entries of one file come to."""
    sheet = Sheet(given, table(given.table))
    sheet.start()
    rules = FRAMEWORKS.entries().get(given.table)
    if rules is not None:
        rules(sheet)
    return sheet.close()


def part_of(sheet: Sheet) -> Part:
    """What a sheet holds so far, for rules that settle a second one."""
    return sheet.close()
