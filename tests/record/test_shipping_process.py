"""record/shipping_process.py: real processes ship to a folder; their shell gives way, and may die."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hypocenter.record import shipping_process
from hypocenter.record.shipping import Freight
from hypocenter.record.shipping_process import Starter

pytestmark = pytest.mark.skipif(not Path("/bin/sh").exists(), reason="needs a shell")


@pytest.fixture
def starter() -> Iterator[Starter]:
    made = Starter()
    yield made
    made.close()


@pytest.fixture(params=["run", 'it\'s a "run" $HOME \\n;ls', "two\nlines"])
def freight(request: pytest.FixtureRequest, tmp_path: Path) -> Freight:
    run = tmp_path / request.param
    (run / "rank-00000").mkdir(parents=True)
    return Freight(run=run, folder=run / "rank-00000", address=str(tmp_path / "the re"))


def shell_of(starter: Starter) -> int:
    shell = starter._shell
    assert shell is not None
    return shell.pid


def assert_ships(starter: Starter, freight: Freight, name: str) -> None:
    (freight.folder / name).write_text(name)
    assert starter.ship(freight, False, 60) == ""
    assert (Path(freight.address) / "rank-00000" / name).read_text() == name


def test_whatever_a_path_looks_like_it_is_shipped(starter: Starter, freight: Freight) -> None:
    assert_ships(starter, freight, "first")


class TestShell:
    @pytest.fixture
    def freight(self, tmp_path: Path) -> Freight:
        (tmp_path / "run" / "rank-00000").mkdir(parents=True)
        return Freight(run=tmp_path / "run", folder=tmp_path / "run" / "rank-00000", address=str(tmp_path / "there"))

    def test_one_shell_starts_all_processes_and_gives_way(self, starter: Starter, freight: Freight) -> None:
        assert_ships(starter, freight, "first")
        shell = shell_of(starter)
        assert_ships(starter, freight, "second")

        assert shell_of(starter) == shell
        assert os.sched_getscheduler(shell) == os.SCHED_IDLE

    def test_one_that_was_killed_is_replaced(self, starter: Starter, freight: Freight) -> None:
        assert_ships(starter, freight, "first")
        os.kill(shell_of(starter), signal.SIGKILL)

        assert_ships(starter, freight, "second")
        assert_ships(starter, freight, "third")

    def test_what_a_process_sees_is_the_environment_of_now(
        self, starter: Starter, freight: Freight, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert_ships(starter, freight, "first")
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "fsspec.py").write_text("raise ImportError")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"), prepend=os.pathsep)
        (freight.folder / "second").write_text("")

        assert "fsspec is not installed" in starter.ship(freight, False, 60)

    def test_why_it_failed_is_said(self, starter: Starter, freight: Freight, tmp_path: Path) -> None:
        (freight.folder / "first").write_text("")
        Path(freight.address).write_text("in the way")

        assert "NotADirectoryError" in (why := starter.ship(freight, False, 60)) or "FileExistsError" in why

    def test_what_takes_too_long_is_given_up_and_the_next_is_tried(self, starter: Starter, freight: Freight) -> None:
        (freight.folder / "first").write_text("")
        assert starter.ship(freight, False, 0.01) == "it took more than 0 s"
        assert_ships(starter, freight, "second")

    def test_no_process_is_left_when_it_is_closed(self, starter: Starter, freight: Freight) -> None:
        assert_ships(starter, freight, "first")
        shell = shell_of(starter)
        starter.close()
        with pytest.raises(ProcessLookupError):
            os.kill(shell, 0)
        assert starter.ship(freight, True, 60) == ""  # the rest

    def test_the_shell_ends_with_the_program_that_started_it(self, freight: Freight, tmp_path: Path) -> None:
        (freight.folder / "first").write_text("")
        program = f"""
import os, signal
from pathlib import Path
from hypocenter.record.shipping import Freight
from hypocenter.record.shipping_process import Starter
starter = Starter()
run = Path({str(freight.run)!r})
assert starter.ship(Freight(run=run, folder=run / "rank-00000", address={freight.address!r}), False, 60) == ""
print(starter._shell.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
        ended = subprocess.run([shipping_process.sys.executable, "-c", program], capture_output=True, text=True)
        shell, until = int(ended.stdout), time.monotonic() + 20
        while Path(f"/proc/{shell}").exists() and "Z" not in state_of(shell) and time.monotonic() < until:
            time.sleep(0.02)
        assert not Path(f"/proc/{shell}").exists() or "Z" in state_of(shell)


def state_of(process: int) -> str:
    """Z, of one that has ended and that nobody asked for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
