"""Every rule, every cause and every fit has its manual page: a docstring with the four headings, each with a text."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hypocenter.manual import HEADINGS, Manual, parse

ROOT = Path(__file__).resolve().parents[2]
CATALOGUES = ("detect/rules", "diagnose/causes", "compare/fits", "doctor/checks", "twins/changes")


def entries() -> list[Path]:
    """The files of the catalogues."""
    folders = [ROOT / "src" / "hypocenter" / catalogue for catalogue in CATALOGUES]
    return sorted(path for folder in folders for path in folder.glob("*.py") if not path.name.startswith("_"))


def pages_of(source: str) -> list[Manual]:
    """The docstrings of a file (its own, its functions', its classes') that have at least one of the headings."""
    module = ast.parse(source)
    holders = [module, *(n for n in module.body if isinstance(n, ast.FunctionDef | ast.ClassDef))]
    found = [parse(ast.get_docstring(holder)) for holder in holders]
    return [page for page in found if page.sections]


@pytest.mark.parametrize("path", entries(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_entry_has_a_whole_manual_page(path: Path) -> None:
    pages = pages_of(path.read_text(encoding="utf-8"))

    assert pages, f"no docstring of the file has the headings {HEADINGS}"
    assert [page.missing for page in pages] == [()] * len(pages)
    assert all(page.message for page in pages)


@pytest.mark.parametrize("catalogue", CATALOGUES)
def test_catalogue_is_not_empty(catalogue: str) -> None:
    assert [path for path in entries() if path.parent.as_posix().endswith(catalogue)]


def test_a_page_without_a_heading_is_seen() -> None:
    page = '"""A message.\n\nWhat it means\n    Much.\n\nWhat to do\n"""'

    (found,) = pages_of(page)

    assert found.missing == ("How it is decided", "What to do", "When it is wrong")
