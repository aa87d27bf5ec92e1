"""Every code block of the page about MindSpore runs, as those of other pages do (tests/docs/test_blocks.py)."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import given
from blocks import DOCS, blocks
from blocks import given as given_to
from runner import run_page

PAGE = DOCS / "mindspore.md"


def test_blocks_run(tmp_path: Path) -> None:
    given.put(given_to(PAGE), tmp_path)

    run_page(blocks(PAGE), tmp_path)

    assert len(list((tmp_path / "runs").iterdir())) == 5  # torch's, the page's three, and one by `watch`
