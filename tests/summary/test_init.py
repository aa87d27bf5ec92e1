"""The package needs no framework."""

from __future__ import annotations

import subprocess
import sys


def test_no_framework_is_imported() -> None:
    program = (
        "import sys, hypocenter.summary.sketch, hypocenter.summary.reducers.numpy; "
        "sys.exit(bool({'torch', 'mindspore'} & set(sys.modules)))"
    )

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
