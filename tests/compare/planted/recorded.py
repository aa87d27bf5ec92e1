"""Record programs of the table, each once, several in a forked child; compare them."""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cases import Base, Case, Noise

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.record.reader import open_run

ROOT = Path(__file__).resolve().parents[3]
RECORD = Path(__file__).with_name("record.py")
SECONDS = 900.0  # for all programs of one child, on a machine under load


class Recordings:
    """Where the recordings are; made when they are missing.

    Args:
        folder: gets a directory for each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(self, cases: Iterable[Case | Noise]) -> None:
        """Record what these need and is not there yet, base by base."""
        cases = list(cases)
        for base in dict.fromkeys(case.base for case in cases):
            jobs = [self._job(base)] + [self._job(base, one) for one in cases if one.base == base]
            jobs = [job for job in jobs if not Path(job["out"]).exists()]
            if jobs:
                _run(jobs, self.folder / f"{base.id}.json")

    def baseline(self, case: Case | Noise) -> Path:
        """The good program."""
        return self.folder / case.base.id

    def candidate(self, case: Case | Noise) -> Path:
        """The other one."""
        return self.folder / f"case-{case.id}"

    def compared(self, case: Case | Noise) -> Comparison:
        """What the comparison says."""
        return compare_runs(open_run(self.baseline(case)), open_run(self.candidate(case)))

    def _job(self, base: Base, case: Case | Noise | None = None) -> dict[str, Any]:
        out = self.folder / base.id if case is None else self.candidate(case)
        return {
            "network": base.network, "dtype": base.dtype, "n_microbatches": base.n_microbatches, "out": str(out),
            "edits": [] if case is None else [case.edit], "calibrate": "every=1" if case is None else "never",
        }  # fmt: skip


def _run(jobs: Sequence[dict[str, Any]], file: Path) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "processes"))
    import warm

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(jobs), encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = warm.run([sys.executable, str(RECORD), str(file)], env=env, timeout=SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]


def is_site_right(case: Case, found: Comparison) -> bool:
    """Whether the first place is the planted one."""
    first = found.first
    if found.status != "diverged" or first is None:
        return False
    phases, sites = case.phase.split("|"), case.site.split("|")
    return first.phase in phases and any(fnmatch.fnmatchcase(first.site, site) for site in sites)


def is_cause_right(case: Case, found: Comparison) -> bool:
    """Whether the wanted fit was taken."""
    return found.fit is not None and found.fit.name == case.fit
