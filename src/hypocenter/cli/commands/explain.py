"""`hypocenter explain NAME`: the manual page of a rule, a cause, a fit: whatever has one."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from hypocenter.errors import UnknownNameError
from hypocenter.manual import Manual
from hypocenter.report import manual_page, manuals, wording
from hypocenter.report.nearest import nearest
from hypocenter.report.screen import screen_of, write


@click.command("explain")
@click.argument("name", metavar="NAME")
@click.option("--json", "as_json", is_flag=True, help="Print the page as JSON.")
def command(name: str, as_json: bool) -> None:
    """Explain a rule (HC101), a cause (format-overflow), or anything else of `hypocenter list` that has a page.

    Meaning, how it is decided, what to do, when it is wrong.
    """
    kind, title, page = find(name)
    if as_json:
        found = {"schema": "hypocenter.manual/1", "status": "found", "kind": kind, "name": title, **asdict(page)}
        write(sys.stdout, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
        return
    write(sys.stdout, manual_page.render(kind, title, page, screen_of(sys.stdout)))


def find(name: str) -> tuple[str, str, Manual]:
    """The kind (`rule`, `cause`, ...), the right spelling, and the page.

    Raises:
        UnknownNameError: nobody knows the name; tells the nearest.
    """
    shelves = {kind: pages() for kind, pages in manuals.SHELVES.items()}
    for kind, pages in shelves.items():
        for title, page in pages.items():
            if title.lower() == name.lower():
                return kind, title, page
    raise UnknownNameError(
        f"nothing is called {name!r}",
        where="hypocenter explain",
        why="there are " + ", ".join(wording.count(len(pages), kind) for kind, pages in shelves.items()),
        fix=nearest(name, [title for pages in shelves.values() for title in pages]),
    )
