"""Gold files and the fakes of the report tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # `import report_fakes`

GOLD = Path(__file__).parent / "gold"


@pytest.fixture
def same_as_gold() -> Callable[[str, str], None]:
    """Compare with a file of gold/; on a difference the text is written beside it as `<name>.actual`."""

    def compare(name: str, text: str) -> None:
        gold, actual = GOLD / name, GOLD / f"{name}.actual"
        if gold.exists() and gold.read_text(encoding="utf-8") == text:
            actual.unlink(missing_ok=True)
            return
        GOLD.mkdir(exist_ok=True)
        actual.write_text(text, encoding="utf-8")
        pytest.fail(f"differs from {gold}; if {actual} is right, rename it")

    return compare
