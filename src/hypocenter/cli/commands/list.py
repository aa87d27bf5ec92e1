"""`hypocenter list`: what there is, by kind, and plug-ins that did not load."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import click

from hypocenter.catalogue import Broken
from hypocenter.config import Config
from hypocenter.exporting.catalogue import EXPORTERS
from hypocenter.importing.catalogue import IMPORTERS
from hypocenter.record import sinks
from hypocenter.record.catalogue import sink_names
from hypocenter.report import catalogue, manuals, wording
from hypocenter.report.columns import aligned
from hypocenter.report.screen import write


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of thing, its entries with a line about each, and those that did not load."""

    kind: str
    entries: dict[str, str]
    broken: tuple[Broken, ...] = ()


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """List rules, causes, fits, formats, options and all else there is, and plug-ins that did not load."""
    found = list(shelves())
    if as_json:
        envelope = {"schema": "hypocenter.list/1", "status": "found", "shelves": [asdict(shelf) for shelf in found]}
        write(sys.stdout, json.dumps(envelope, indent=2, ensure_ascii=False) + "\n")
        return
    write(sys.stdout, "\n".join(line for shelf in found for line in _in_words(shelf)))
    write(sys.stderr, "next: hypocenter explain HC101\n")


def shelves() -> Iterator[Kind]:
    """Yield everything there is, one shelf per kind."""
    for kind, pages in manuals.PAGES.items():
        entries = {name: page.message for name, page in pages().items()}
        yield Kind(kind=f"{kind}s", entries=entries, broken=manuals.broken(kind))
    formats = catalogue.load()
    yield Kind(kind="formats", entries={n: f.about for n, f in formats.by_name.items()}, broken=formats.broken)
    dumps = {name: entry.about for name, entry in IMPORTERS.entries().items()}
    yield Kind(kind="importers", entries=dumps, broken=tuple(IMPORTERS.broken))
    files = {name: entry.about for name, entry in EXPORTERS.entries().items()}
    yield Kind(kind="exporters", entries=files, broken=tuple(EXPORTERS.broken))
    yield Kind(kind="sinks", entries=_sinks())
    defaults = Config()
    yield Kind(kind="options", entries={f.name: f"default {getattr(defaults, f.name)!r}" for f in fields(Config)})


def _sinks() -> dict[str, str]:
    """Return sinks with the first line of their file, read without importing: most need a package."""
    folder = Path(sinks.__path__[0])
    about = dict.fromkeys(sink_names(), "from another package")
    for path in folder.glob("[!_]*.py"):
        page = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        about[path.stem] = page.partition("\n")[0]
    return about


def _in_words(shelf: Kind) -> Iterator[str]:
    yield f"{shelf.kind} ({len(shelf.entries)})"
    if shelf.entries:
        yield from (f"  {line}" for line in aligned(list(shelf.entries.items())))
    for broken in shelf.broken:
        yield f"  {wording.clean(broken.name)} did not load: {wording.sentence(broken.error)}"
    yield ""
