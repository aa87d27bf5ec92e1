"""The catalogue of checks: each file of `checks/` looks at one thing of a machine, `look(machine) -> Verdict`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hypocenter.catalogue import Catalogue
from hypocenter.doctor.answer import Area, Check, Verdict, cannot_tell
from hypocenter.doctor.machine import Machine
from hypocenter.manual import Manual, page_of

Look = Callable[[Machine], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One check: its code, what a person reads as its name, and the function that looks."""

    code: str
    area: Area
    title: str
    order: int  # in which they are read: what others build on comes first
    look: Look

    @property
    def manual(self) -> Manual:
        """The manual page of the check: the docstring of its file."""
        return page_of(self.look)


CATALOGUE: Catalogue[Entry] = Catalogue("hypocenter.doctor.checks", "hypocenter.checks")


def check(code: str, *, title: str, area: Area = "toolkits", order: int = 100) -> Callable[[Look], Look]:
    """Register a check under an area's word and the name of its file: `toolkit.host-compiler`."""
    return CATALOGUE.adding(code, lambda look: Entry(code=code, area=area, title=title, order=order, look=look))


def checks(plugins: Iterable[str] = ()) -> list[Entry]:
    """Return all checks in the order in which they are read."""
    CATALOGUE.load_asked(plugins)
    return CATALOGUE.in_order()


def examine_machine(machine: Machine, plugins: Iterable[str] = ()) -> Iterator[Check]:
    """Yield every check's answer about one machine; one that raises is listed as broken, and cannot tell."""
    for entry in checks(plugins):
        try:
            found = entry.look(machine)
        except Exception as error:  # a stranger's file, or a machine that nobody thought of
            CATALOGUE.report(entry.code, error)
            found = cannot_tell("the check itself failed", f"{type(error).__name__}: {error}")
        yield Check(
            code=entry.code, area=entry.area, title=entry.title, status=found.status, what=found.what, why=found.why,
            fix=found.fix, host=machine.host, evidence=found.evidence,
        )  # fmt: skip


def manuals() -> dict[str, Manual]:
    """Return the manual page of each check, by code."""
    return {entry.code: entry.manual for entry in checks()}
