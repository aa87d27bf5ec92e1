"""Where manual pages come from: one shelf for each kind of thing that has them, its pages by name."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping

from rich.text import Text

from hypocenter.catalogue import Broken
from hypocenter.checklist.items import item
from hypocenter.compare import fitting
from hypocenter.compare.pairing import chain
from hypocenter.detect import engine, group_engine
from hypocenter.diagnose import health, verdicts
from hypocenter.doctor import catalogue as doctor_catalogue
from hypocenter.doctor import settings
from hypocenter.doctor.over_ranks import pages as over_ranks
from hypocenter.manual import Manual, page_of
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen
from hypocenter.twins import change

_LITERAL = re.compile(r"`[^`]*`|\s.*|")  # a command, what is indented, nothing
_SOURCE_WIDTH = 90  # columns: a line of a page that is shorter, and had room for the next word, ends there


def rules() -> dict[str, Manual]:
    """Return the pages of all rules by code."""
    over_ranks = {code: entry.manual for code, entry in group_engine.group_rules().items()}
    return dict(sorted({**{code: entry.manual for code, entry in engine.rules().items()}, **over_ranks}.items()))


def causes() -> dict[str, Manual]:
    """Return the pages of all causes by name."""
    return {name: cause.manual for name, cause in verdicts.causes().items()}


def rules_that_say(cause: str) -> list[str]:
    """Return the codes of the rules whose file names this cause."""
    of_steps = [(code, entry.check) for code, entry in engine.rules().items()]
    over_ranks = [(code, entry.check or entry.end) for code, entry in group_engine.group_rules().items()]
    files = {code: sys.modules[look.__module__] for code, look in (*of_steps, *over_ranks) if look is not None}
    return sorted(code for code, file in files.items() if f'"{cause}"' in inspect.getsource(file))


def fits() -> dict[str, Manual]:
    """Return the pages of all fits by name."""
    return {name: page_of(entry.look) for name, entry in fitting.fits().items()}


def matchers() -> dict[str, Manual]:
    """Return the pages of the matchers by name, in the order of their chain; a page is one line."""
    return {entry.name: page_of(entry.pair) for entry in chain.matchers()}


def items() -> dict[str, Manual]:
    """Return the pages of all items of the checklist by key, in the order of its groups."""
    return item.pages(item.load())


def checks() -> dict[str, Manual]:
    """Return the pages of the doctor's checks of a machine, and of those over the ranks of a job, by code."""
    return {**doctor_catalogue.manuals(), **over_ranks.manuals()}


def doctor_settings() -> dict[str, Manual]:
    """Return the pages of the settings that the doctor looks at, by code."""
    return settings.manuals()


def measures() -> dict[str, Manual]:
    """Return the pages of the measures of a run's health by name, in the order of their columns."""
    return {entry.name: entry.manual for entry in health.measures()}


def twins() -> dict[str, Manual]:
    """Return the pages of the changes of `hypocenter twin` by name, in their order."""
    return {name: entry.manual for name, entry in change.changes().items()}


PAGES: Mapping[str, Callable[[], dict[str, Manual]]] = {
    "rule": rules, "cause": causes, "fit": fits, "matcher": matchers, "item": items,
    "check": checks, "setting": doctor_settings, "measure": measures,
    "twin": twins,
}  # fmt: skip
"""The kinds of things that `hypocenter explain` and `hypocenter list` know, by the word for one of them."""


def broken(kind: str) -> tuple[Broken, ...]:
    """Return the files of a kind that did not load; call it after its pages were asked for."""
    catalogues = {
        "rule": (engine.CATALOGUE, group_engine.CATALOGUE), "cause": (verdicts.CATALOGUE,),
        "fit": (fitting.CATALOGUE,), "matcher": (chain.CATALOGUE,), "check": (doctor_catalogue.CATALOGUE,),
        "measure": (health.CATALOGUE,), "twin": (change.CATALOGUE,),
    }  # fmt: skip
    return tuple(one for catalogue in catalogues.get(kind, ()) for one in catalogue.broken)


def render(kind: str, name: str, page: Manual, screen: Screen) -> str:
    """Return `HC101 (rule): message`, each heading with its text, broken for the screen, then the next command."""
    return to_text(_lines(kind, name, page, screen.width), screen)


def _lines(kind: str, name: str, page: Manual, width: int) -> Iterator[Text]:
    yield from wrapped(Text.assemble((name, "bold"), f" ({kind}): "), Text(page.message), width, indent=2)
    for heading, text in page.sections:
        yield Text()
        yield Text(heading, "bold")
        for paragraph in _paragraphs(text):
            yield from (
                wrapped(Text("  "), Text(paragraph), width) if paragraph[:1].strip() else [Text(f"  {paragraph}")]
            )
    yield Text()
    yield Text.assemble("all there is: ", ("hypocenter list", "green"))


def _paragraphs(text: str) -> Iterator[str]:
    """Join prose that was broken for the source; a command, an empty or an indented line stays as it is."""
    full = max(_SOURCE_WIDTH, *map(len, text.splitlines()), 0)
    lines: list[str] = []
    before = ""
    for line in text.splitlines():
        is_broken = len(before) + len(line.split(" ")[0]) + 1 > full
        if is_broken and not _LITERAL.fullmatch(line) and not _LITERAL.fullmatch(before):
            lines[-1] = f"{lines[-1]} {line}"
        else:
            lines.append(line)
        before = line
    yield from lines
