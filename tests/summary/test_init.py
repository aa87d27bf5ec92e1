"""What the package exports, and that it needs no framework."""

from __future__ import annotations

import subprocess
import sys

import hypocenter.summary


def test_everything_exported_exists() -> None:
    assert [name for name in hypocenter.summary.__all__ if not hasattr(hypocenter.summary, name)] == []


def test_no_framework_is_imported() -> None:
    program = (
        "import sys, hypocenter.summary.sketch, hypocenter.summary.reducers.numpy; "
        "sys.exit(bool({'torch', 'mindspore'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
