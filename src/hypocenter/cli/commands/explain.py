"""`hypocenter explain NAME`: the manual page of a rule, a cause, a fit: whatever has one."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from hypocenter.cli.answer_format import format_option, print_answer
from hypocenter.detect.retired import RETIRED
from hypocenter.errors import UnknownNameError
from hypocenter.manual import Manual
from hypocenter.nouns import CAUSES
from hypocenter.report import manuals, wording
from hypocenter.report.screen import screen_of, write
from hypocenter.report.wording import nearest


@click.command("explain")
@click.argument("name", metavar="NAME", shell_complete=lambda ctx, param, typed: _beginning_with(typed))
@format_option()
def command(name: str, format_name: str) -> None:
    """Explain a rule (HC101), a cause (format-overflow), or anything else of `hypocenter list` that has a page.

    Meaning, how it is decided, what to do, when it is wrong.
    """
    kind, title, page = find(name)
    if format_name != "terminal":
        found = {"schema": "hypocenter.manual/1", "status": "found", "kind": kind, "name": title, **asdict(page)}
        print_answer("explain", found, format_name)
        return
    if name.upper() in RETIRED:
        write(sys.stdout, f"{name.upper()} is now {title}\n\n")
    write(sys.stdout, manuals.render(kind, title, page, screen_of(sys.stdout)))


def _beginning_with(typed: str) -> list[str]:
    """Return names that can be explained and begin so, for the shell's completion."""
    titles = [title for pages in manuals.PAGES.values() for title in pages()]
    return [title for title in titles if title.lower().startswith(typed.lower())]


def find(name: str) -> tuple[str, str, Manual]:
    """Return kind (`rule`, `cause`, ...), right spelling and page; of a retired code those of its successor.

    Raises:
        UnknownNameError: nobody knows the name; tells the nearest.
    """
    shelves = {kind: pages() for kind, pages in manuals.PAGES.items()}
    name = RETIRED.get(name.upper(), name)
    for kind, pages in shelves.items():
        for title, page in pages.items():
            if title.lower() == name.lower():
                return kind, title, page
    if name.lower() in CAUSES:
        raise UnknownNameError(
            f"the cause {name!r} has no page of its own",
            where="hypocenter explain",
            why="the rule that found it has",
            fix=f"explain the code of the finding, one of {', '.join(manuals.rules_that_say(name.lower()))}",
        )
    raise UnknownNameError(
        f"nothing is called {name!r}",
        where="hypocenter explain",
        why="there are " + ", ".join(wording.count(len(pages), kind) for kind, pages in shelves.items()),
        fix=nearest(name, [title for pages in shelves.values() for title in pages]),
    )
