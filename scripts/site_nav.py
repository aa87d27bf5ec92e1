"""A hook of mkdocs: the navigation leaves out pages that are not there; those that it does not name are its "More"."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Make the navigation that of the pages that are there."""
    folder = Path(config["docs_dir"])
    named: set[str] = set()
    nav = _there(config["nav"], folder, named)
    pages = {page.relative_to(folder).as_posix() for page in folder.rglob("*.md")}
    if more := sorted(pages - named):
        nav.append({"More": more})
    config["nav"] = nav
    return config


def _there(entries: list[Any], folder: Path, named: set[str]) -> list[Any]:
    kept: list[Any] = []
    for entry in entries:
        if isinstance(entry, dict):
            ((title, below),) = entry.items()
            if inside := _there(below if isinstance(below, list) else [below], folder, named):
                kept.append({title: inside if isinstance(below, list) else inside[0]})
        elif (folder / entry).is_file():
            named.add(entry)
            kept.append(entry)
    return kept
