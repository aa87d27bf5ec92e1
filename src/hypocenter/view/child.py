"""`python -m hypocenter.view.child`: what needs all rows of a recording, in a process that gives its memory back."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow.compute as pc

from hypocenter.compare.curves.of_runs import curves_of_runs
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options, first_step_of
from hypocenter.detect.bookkeeping import holds_values, is_bookkeeping
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.report import wording
from hypocenter.report.comparison import html as comparison_page
from hypocenter.report.comparison.page.payload import Material
from hypocenter.report.formats import html
from hypocenter.report.sites import SiteLine, site_lines
from hypocenter.view.findings import Told


def answer(words: Sequence[str]) -> bytes:
    """Return the answer to `diagnose RUN`, `report RUN` or `diff BASELINE CANDIDATE`."""
    what, *paths = words
    recordings = [open_run(Path(path)) for path in paths]
    if what == "diagnose":
        return msgspec.msgpack.encode(Told(diagnosis=diagnose(recordings[0]), sites=tuple(_sites(recordings[0]))))
    if what == "report":
        return html.render(recordings[0], diagnose(recordings[0]), reads_source=False).encode()
    baseline, candidate = recordings
    found = compare_runs(baseline, candidate, options=Options())
    material = Material(
        scene=first_step_of(found, baseline, candidate, Options()), facts=(baseline.facts(), candidate.facts()),
        curves=curves_of_runs(baseline.directory, candidate.directory),
        command=wording.command("diff", *paths, "--report", "OUT.html"),
    )  # fmt: skip
    return comparison_page.render(found, material).encode()


def _sites(recording: RecordedRun) -> list[SiteLine]:
    """Return every site whose values were recorded, in the order of `hypocenter show`."""
    table = recording.table()
    return site_lines(table.filter(pc.and_not(holds_values(table), is_bookkeeping(table))))


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(10)
    sys.stdout.buffer.write(answer(sys.argv[1:]))
