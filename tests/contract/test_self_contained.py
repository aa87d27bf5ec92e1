"""The repository stands alone: no path of somebody's machine in it, and no link that leads nowhere."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = re.compile(r"(?<![\w.~-])/(?:work|root|Users|home/(?!me/)\w+|mnt/\w+)/\w")  # /home/me is anybody's
LINK = re.compile(r"\[[^\]]*\]\((?!\w+:|#)([^)\s#]+)[^)]*\)")


def files() -> list[Path]:
    """Files that are or would be under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str:
    """The text of a file; nothing for binary ones."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_file_names_a_path_outside_the_repository() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for path in files()
        if path != Path(__file__)
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if len(line) < 5_000 and OUTSIDE.search(line)  # longer lines are packed data
    ]

    assert found == []


@pytest.mark.parametrize("line", ["see /home/ann/run", 'open("/root/x")', "cd /mnt/data/set"])
def test_a_path_of_somebodys_machine_is_seen(line: str) -> None:
    assert OUTSIDE.search(line)


@pytest.mark.parametrize(
    "line", ["src/home/ann", "~/work/x", "https://example.org/home/x", "a /work / b", "/home/me/x"]
)
def test_what_is_no_such_path_is_left_alone(line: str) -> None:
    assert not OUTSIDE.search(line)


def test_every_relative_link_of_a_page_leads_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)} -> {target}"
        for page in files()
        if page.suffix == ".md"
        for target in LINK.findall(text_of(page))
        if not (page.parent / target).exists()
    ]

    assert broken == []
