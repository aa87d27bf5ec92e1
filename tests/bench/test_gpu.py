"""`scripts/gpu` where there is no GPU: it says what it would do; what a CPU can check is checked on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "processes")]

import warm  # noqa: E402

from bench.gpu import __main__ as command  # noqa: E402
from bench.gpu import rows  # noqa: E402
from bench.gpu.checks import programs  # noqa: E402

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
ON_CPU = [name for name in command.CHECKS if "cpu" in command._check(name).NEEDS]


@pytest.mark.night
def test_without_a_gpu_it_says_what_it_would_do():
    done = subprocess.run(
        [str(ROOT / "scripts" / "gpu"), "--python", sys.executable, "--dry-run"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip

    assert done.stdout.startswith("Nothing is run: ")
    told = [line.split("`")[1] for line in done.stdout.splitlines() if line.startswith("- `")]
    assert told == sorted(path.stem for path in (ROOT / "bench" / "gpu" / "checks").glob("[!_]*.py"))


@pytest.fixture
def _in_forks(monkeypatch):
    def run(argv):
        words = " ".join(argv).replace(f"{sys.executable} -m torch.distributed.run", TORCHRUN).split()
        done = warm.run(words, env=dict(os.environ), timeout=240)
        return rows.Done(code=done.returncode, out=done.stdout, err=done.stderr)

    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(rows, "_run", run)


@pytest.mark.night
@pytest.mark.usefixtures("_in_forks")
@pytest.mark.parametrize("name", ON_CPU)
def test_what_a_cpu_can_check_is_as_expected_on_it(monkeypatch, capsys, tmp_path, name):
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu", "--check", name, "--write", str(tmp_path / "table.md")])
    code = command.main()

    table = (tmp_path / "table.md").read_text()
    assert (code, "**bad**" in table, "not run" in table) == (0, False, False), table
    assert table.count(f"| {name} |") >= 1
    assert table.strip() in capsys.readouterr().out


@pytest.mark.night
@pytest.mark.usefixtures("_in_forks")
def test_what_is_not_as_expected_is_bad(tmp_path):
    options = ("--steps", "4", "--nan-at", "2")
    found = rows.identity("planted", tmp_path / "run", *options)

    assert [row.is_ok for row in found] == [True, False]
    assert found[1].seen.startswith("HC1")


def test_a_check_that_breaks_is_a_row_of_its_own(monkeypatch):
    class Broken:
        "Breaks."

        NEEDS = ("cpu",)

        @staticmethod
        def run(device, folder):
            raise RuntimeError("broken")

    monkeypatch.setattr(command, "_check", lambda name: Broken)
    (row,) = command._rows("x", "cpu")
    assert (row.is_ok, "broken" in row.seen) == (False, True)


@pytest.mark.night
@pytest.mark.usefixtures("_in_forks")
def test_programs_of_a_device_are_judged(monkeypatch, tmp_path):
    monkeypatch.setenv("DEVICE", "cpu")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{programs.OWN}")
    monkeypatch.setattr(programs, "_run", rows._run)

    healthy = programs._healthy(programs.OWN / "healthy" / "sparse.py", tmp_path)
    faulty = programs._faulty(programs.OWN / "faulty" / "masked_row.py", tmp_path)

    assert (healthy.is_ok, healthy.seen) == (True, "nothing")
    assert (faulty.is_ok, faulty.expected) == (True, "HC102 at step 4")
    assert set(programs.EXPECTED) == {path.stem for path in (programs.OWN / "faulty").glob("*.py")}
