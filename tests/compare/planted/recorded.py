"""Record programs of the table, each once, several in a forked child; compare them."""

from __future__ import annotations

import fnmatch
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cases import NOISE, Base, Case, Noise

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.record.reader import open_run

ROOT = Path(__file__).resolve().parents[3]
RECORD = Path(__file__).with_name("record.py")
FORKS = ROOT / "tests" / "ranks" / "forks.py"
SECONDS = 3600.0  # for all programs of one child, on a machine under load


class Recordings:
    """Where the recordings are; made when they are missing.

    Args:
        folder: gets a directory for each.
        n_steps: of each program.
    """

    def __init__(self, folder: Path, *, n_steps: int = 3) -> None:
        self.folder, self.n_steps = folder, n_steps

    def make(self, cases: Iterable[Case | Noise]) -> None:
        """Record what these need and is not there yet; all of one number of ranks in one child."""
        cases = list(cases)
        jobs: dict[str, dict[str, Any]] = {}
        for base in dict.fromkeys(case.base for case in cases):
            of_base = [one for one in cases if one.base == base]
            of_base += [one for case in of_base for one in self._repeats(case)]
            jobs |= {job["out"]: job for job in (self.job(base), *(self.job(base, one) for one in of_base))}
        for n_ranks in (1, 2):
            missing = [job for out, job in jobs.items() if job["n_ranks"] == n_ranks and not Path(out).exists()]
            if missing:
                _run(missing, self.folder / f"{n_ranks}-ranks.json", n_ranks)

    def baseline(self, case: Case | Noise) -> Path:
        """The good program."""
        repeats = self._repeats(case)
        return self.candidate(repeats[0]) if repeats else self.folder / case.base.id

    def candidate(self, case: Case | Noise) -> Path:
        """The other one."""
        return self.folder / f"case-{case.id}"

    def compared(self, case: Case | Noise) -> Comparison:
        """What the comparison says."""
        repeats = [open_run(self.candidate(one)) for one in self._repeats(case)[1:]]
        baseline, candidate = open_run(self.baseline(case)), open_run(self.candidate(case))
        return compare_runs(baseline, candidate, options=Options(noise=repeats))

    def _repeats(self, case: Case | Noise) -> list[Noise]:
        names = case.repeats if isinstance(case, Noise) else ()
        return [one for name in names for one in NOISE if one.name == name and one.base == case.base]

    def job(self, base: Base, case: Case | Noise | None = None) -> dict[str, Any]:
        """What record.py is told; without a case, the good program."""
        out = self.folder / base.id if case is None else self.candidate(case)
        edits = [*([(base.edit, {})] if base.edit else []), *([case.edit] if case is not None and case.edit else [])]
        return {
            "network": base.network, "dtype": base.dtype, "n_microbatches": base.n_microbatches, "out": str(out),
            "edits": edits, "calibrate": "every=1" if case is None else "never",
            "n_ranks": case.n_ranks if isinstance(case, Noise) else 1, "n_steps": self.n_steps,
        }  # fmt: skip


def _run(jobs: Sequence[dict[str, Any]], file: Path, n_ranks: int) -> None:
    sys.path.insert(0, str(ROOT / "tests" / "processes"))
    import warm

    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(jobs), encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HYPOCENTER_")}
    env = kept | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ranks = [str(FORKS), "--nproc-per-node", str(n_ranks)] if n_ranks > 1 else []
    done = warm.run([sys.executable, *ranks, str(RECORD), str(file)], env=env, timeout=SECONDS)
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
