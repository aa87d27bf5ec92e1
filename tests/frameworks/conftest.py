"""Real training jobs in processes of their own, and what their recordings hold."""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))

import warm
from launch import launch as fork

from hypocenter.detect.diary import Entry, entry_of
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.diagnose.records import Records
from hypocenter.nouns import Diagnosis, Reading, StepRecord
from hypocenter.record.reader import RecordedRun, open_run

HERE = Path(__file__).parent
SECONDS = 300  # machines under load take long


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded job, by (rank, step)."""

    records: dict[tuple[int, int], StepRecord]
    entries: dict[tuple[int, int], Entry]
    diagnosis: Diagnosis
    digests: list[str]

    def skipped(self) -> set[tuple[int, int]]:
        return {key for key, record in self.records.items() if record.skipped}

    def culprits(self, rank: int, step: int) -> list[str]:
        return [reading.site for reading in self.entries[rank, step].culprits]


def _environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("HYPOCENTER_")}
    return kept | {
        "PYTHONPATH": str(HERE.parents[1] / "src"),
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }


@pytest.fixture
def launch(tmp_path):
    """Run a script of this folder on some ranks, plain or under `hypocenter run`, in forks that need no imports."""

    def started(command: list[str]) -> subprocess.CompletedProcess[str]:
        return warm.run(command, cwd=tmp_path, env=_environment(), timeout=SECONDS)

    return functools.partial(_recording, started, tmp_path)


@pytest.fixture(params=["forked", pytest.param("by torchrun", marks=pytest.mark.night)])
def recorded(request, tmp_path, launch):
    """The same by night also with the real torchrun, and ranks that import all for themselves."""

    def started(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=SECONDS, check=False
        )

    return launch if request.param == "forked" else functools.partial(_recording, started, tmp_path)


@dataclass(frozen=True, kw_only=True)
class Ran:
    digests: list[str]  # of each rank's parameters
    diagnosis: dict[str, Any]
    said: str  # on stderr
    run: RecordedRun | None

    @property
    def alarms(self) -> list[dict[str, Any]]:
        return [f for f in self.diagnosis["findings"] if f["severity"] in ("error", "warning")]


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Run a job of this folder on two forked ranks or more, recorded or plain."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")

    def run(script: str, *args: str, record: bool = True, n: int = 2, dies: bool = False, **options: str) -> Ran:
        out = tmp_path / "run" if record else None
        patient: dict[str, Any] = {} if dies else {"agree_timeout_s": 120.0}  # ranks share the cores with other tests
        ended = fork(HERE / script, *args, n=n, out=out, config=patient | options, timeout=SECONDS)
        assert (ended.code != 0) == dies, ended.stdout + ended.stderr
        digests = sorted(re.findall(r"rank \d+ digest [0-9a-f]{64}", ended.stdout))
        assert len(digests) == (0 if dies else n)
        return Ran(
            digests=digests,
            diagnosis=ended.diagnosis,
            said=ended.stderr,
            run=open_run(out) if out is not None else None,
        )

    return run


def place_of(finding):
    """Rank and coordinates, only those that exist."""
    return finding["rank"], {axis: at for axis, at in finding["coords"].items() if at is not None}


def _recording(
    start: Callable[[list[str]], subprocess.CompletedProcess[str]],
    folder: Path,
    script: str,
    *args: str,
    n_ranks: int = 2,
    record: bool = True,
) -> Recording | list[str]:
    launcher = [str(Path(sys.executable).with_name("torchrun")), "--standalone", "--nproc-per-node", str(n_ranks)]
    recorder = [sys.executable, "-m", "hypocenter", "run", "--out", "run"] if record else []
    done = start([*recorder, *launcher, str(HERE / script), *args])
    assert done.returncode == 0, done.stdout + done.stderr
    digests = sorted(re.findall(r"(rank \d+) digest ([0-9a-f]{64})", done.stdout))
    assert len(digests) == n_ranks
    if not record:
        return [digest for _, digest in digests]
    recorded = open_run(folder / "run")
    rows: dict[tuple[int, int], list[Reading]] = {}
    for rank in recorded.ranks:
        for reading in recorded.readings(phase="scaler", rank=rank):
            rows.setdefault((rank, reading.step), []).append(reading)
    entries = {key: entry_of(readings) for key, readings in rows.items()}
    return Recording(
        records={(rank, record.step): record for rank, record in Records.of(recorded)},
        entries={key: entry for key, entry in entries.items() if entry is not None},
        diagnosis=diagnose(recorded),
        digests=[digest for _, digest in digests],
    )
