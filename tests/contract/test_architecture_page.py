"""docs/architecture.md names each folder that exists and none that does not; the files named there and in the life of a
step exist, and so do that page's methods.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hypocenter"


def folders_that_exist() -> set[str]:
    """Folders below src/hypocenter that directly hold a file, such as `tap` and `report/formats`."""
    holding = {path.parent for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {folder.relative_to(PACKAGE).as_posix() for folder in holding} - {"."}


def folders_named(page: str) -> set[str]:
    """First words of the lines of the page's layout block that end in a slash."""
    block = re.search(r"^## Layout$.*?^```\w*$\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert block, "the page has no code block below the heading Layout"
    return set(re.findall(r"^([a-z_]+(?:/[a-z_]+)*)/(?=\s|$)", block[1], re.MULTILINE))


def test_layout_names_exactly_the_folders_that_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    assert folders_named(page) == folders_that_exist()


@pytest.mark.parametrize("name", ["architecture.md", "life-of-a-step.md"])
def test_files_named_in_the_page_exist(name: str) -> None:
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:src/hypocenter/)?[a-z_]+(?:/[a-z_]+)*(?:/|\.(?:py|toml|md)))`", page))

    missing = {each for each in named if not any((base / each).exists() for base in (PACKAGE, ROOT, ROOT / "docs"))}

    assert named
    assert missing == set()


def test_the_life_of_a_step_is_told_in_methods_that_exist() -> None:
    page = (ROOT / "docs" / "life-of-a-step.md").read_text(encoding="utf-8")
    session = "".join((PACKAGE / "session" / name).read_text("utf-8") for name in ("recording.py", "boundary.py"))
    named = set(re.findall(r"`(?:boundary\.)?([a-z]+(?:_[a-z]+)+|before|after)`", page))

    assert len(named) >= 8
    assert named <= set(re.findall(r"def ([a-z_]+)\(", session))
