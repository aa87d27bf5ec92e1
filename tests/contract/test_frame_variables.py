"""Nobody reads the variables of a running frame but through `frame_variables`: the frame would keep what it showed."""

from __future__ import annotations

from pathlib import Path

import hypocenter

SOURCE = Path(hypocenter.__file__).parent
OVER = {"session/crash.py", "replay/failed_call.py"}  # of calls that have raised


def test_frames_that_run_are_asked_in_one_place() -> None:
    found = {p.relative_to(SOURCE).as_posix() for p in SOURCE.rglob("*.py") if ".f_locals" in p.read_text("utf-8")}

    assert found - OVER == {"tap/frame_variables.py"}
