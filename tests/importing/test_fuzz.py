"""Damaged dumps of every kind, each imported in a process with limits: a run or one error of ours, nothing else.

The same as `python -m bench.importing fuzz`, which goes on for as long as one likes, on other seeds.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from bench.importing import fuzz, mutations

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are set from /proc")
SAMPLES = fuzz.dumps_of(fuzz.SAMPLES)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 120, 30))
def test_damaged_dumps_give_a_run_or_one_error(first: int) -> None:
    found = list(fuzz.outcomes(SAMPLES, range(first, first + 30)))

    bad = [outcome for outcome in found if not outcome.is_good]
    assert not bad, bad[0].detail
    assert {outcome.ended for outcome in found} == set(fuzz.GOOD)


def test_every_kind_of_dump_is_among_those_that_are_damaged() -> None:
    names = {path.relative_to(fuzz.SAMPLES).as_posix() for path in SAMPLES}

    assert len(names) >= 30
    assert names >= {"msprobe/pair/baseline_L0", "msprobe/monitor_csv", "mindspore_dump/train_fp32"}
    assert {name.partition("/")[0] for name in names} == {"msprobe", "mindspore_dump", "ptdbg_ascend"}


def _ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: object) -> str:
    """How the watched process ends when an import does this."""
    monkeypatch.setattr(fuzz, "import_dump", harm)
    monkeypatch.setattr(fuzz, "damage", lambda *_: [])
    folder = tmp_path / "f"
    folder.mkdir()
    return fuzz.one(SAMPLES, 0, folder).ended


def test_the_watch_sees_code_memory_files_and_other_exceptions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpickles(path: Path, out: str, kind: str | None) -> None:
        pickle.loads(pickle.dumps(mutations.Harm(Path(out).parent / "canary")))

    def runs(path: Path, out: str, kind: str | None) -> None:
        os.system("true")

    def takes_all(path: Path, out: str, kind: str | None) -> None:
        np.ones(2 * fuzz.MEMORY, np.uint8)
        raise fuzz.HypocenterError("too large")

    def asks_for_all(path: Path, out: str, kind: str | None) -> None:
        np.ones(1 << 34, np.uint8)

    def writes(path: Path, out: str, kind: str | None) -> None:
        (Path(out).parent / "elsewhere").write_text("x")
        raise fuzz.HypocenterError("no")

    harms = {
        "code was run": (unpickles, runs),
        "another exception": (asks_for_all,),
        "512 MiB of memory": (takes_all,),
        "files outside of the run": (writes,),
    }
    for wanted, each in harms.items():
        for harm in each:
            (tmp_path / harm.__name__).mkdir()
            assert _ends(tmp_path / harm.__name__, monkeypatch, harm)[-12:] == wanted[-12:]
