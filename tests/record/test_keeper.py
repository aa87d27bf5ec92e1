"""What becomes of old steps: rolled up within a budget, whole around what was wrong, never lost or counted twice."""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hypocenter.record.keeper import Keep, Keeper
from hypocenter.record.parts import parts_of
from hypocenter.record.reader import RecordedRun, open_run
from tests.record.retained import BLOCK, loss_at, recorded

N_STEPS = 6_000
KEEP = Keep(n_bytes=1 << 30, n_steps=1_000)


@pytest.fixture(scope="module")
def rolled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six thousand steps, the last thousand whole, something wrong at two of the others."""
    return recorded(tmp_path_factory.mktemp("rolled") / "run", N_STEPS, KEEP, bad=(700, 2_500))


def whole_steps(run: RecordedRun) -> set[int]:
    return {reading.step for reading in run.readings(site="w0")}


def mean_by_window(run: RecordedRun, site: str) -> dict[int, float]:
    rows = run.windows().filter([name == site for name in run.windows()["site"].to_pylist()])
    sums: dict[int, tuple[float, int]] = {}
    for step, width, total, n in zip(
        *(rows[c].to_pylist() for c in ("step", "width", "total", "n_sized")), strict=True
    ):
        before = sums.get(step // width, (0.0, 0))
        sums[step // width] = before[0] + total, before[1] + n
    return {window: total / n for window, (total, n) in sums.items() if n}


def test_the_last_steps_are_whole_and_so_are_those_around_a_failure(rolled: Path) -> None:
    whole = whole_steps(open_run(rolled))

    assert set(range(N_STEPS - 1_000, N_STEPS)) <= whole
    for bad in (700, 2_500):
        assert set(range(bad - 64, bad + 17)) <= whole
    assert len(whole) < 3_000


def test_step_records_stay(rolled: Path) -> None:
    assert [record.step for _, record in open_run(rolled).step_records()] == list(range(N_STEPS))


def test_norms_of_the_whole_run_remain_as_windows(rolled: Path) -> None:
    run = open_run(rolled)
    means = mean_by_window(run, "w0")

    assert set(range(40)) <= set(means)
    for window in set(range(40)) - {7, 25}:  # at these a gradient was not finite
        steps = range(window * 100, window * 100 + 100)
        assert means[window] == pytest.approx(math.fsum(map(loss_at, steps)) / 100)


def test_a_window_tells_where_its_extremes_were(rolled: Path) -> None:
    table = open_run(rolled).windows()
    row = next(r for r in table.to_pylist() if r["site"] == "w0" and r["step"] // 100 == 3)

    assert (row["step"], row["last_step"], row["width"], row["n_rows"]) == (300, 399, 100, 100)
    assert row["most"] == pytest.approx(max(map(loss_at, range(300, 400))))
    assert loss_at(row["most_step"]) == pytest.approx(row["most"])
    assert loss_at(row["least_step"]) == pytest.approx(row["least"])


def test_bad_values_are_counted_in_windows(rolled: Path) -> None:
    table = open_run(rolled).windows()
    bad = {(r["site"], r["step"] // 100) for r in table.to_pylist() if r["n_nan"]}

    assert bad == {("w1", 7), ("w1", 25), ("grad_norm", 7), ("grad_norm", 25)}


def test_it_is_said(rolled: Path) -> None:
    (said,) = open_run(rolled).rolled_up

    assert said.startswith("readings of steps 0 to 4,")
    assert "windows of 100 steps" in said


def test_nothing_is_said_of_a_recording_that_is_whole(tmp_path: Path) -> None:
    assert open_run(recorded(tmp_path / "run", 600, KEEP)).rolled_up == []


def test_files_are_few(rolled: Path) -> None:
    assert len(list((rolled / "rank-00000").iterdir())) < 30
    assert not list(rolled.glob("rank-*/.*"))


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [None, 1_000])
def test_the_directory_is_within_its_budget_at_every_moment(tmp_path: Path, n_steps: int | None) -> None:
    folder, seen, said = tmp_path / "run" / "rank-00000", list[int](), list[str]()

    def look() -> None:
        seen.append(sum(path.stat().st_size for path in folder.iterdir()))

    run = recorded(
        tmp_path / "run", 6_000, Keep(n_bytes=600_000, n_steps=n_steps), bad=[2_500], warn=said.append, each=look
    )

    assert max(seen) <= 600_000
    assert said == []
    assert set(range(2_436, 2_517)) <= whole_steps(open_run(run))


def test_a_budget_that_is_too_small_is_said_and_no_finding_goes(tmp_path: Path) -> None:
    said: list[str] = []
    bad = range(100, 4_000, 250)
    run = open_run(recorded(tmp_path / "run", 4_000, Keep(n_bytes=1 << 16), bad=bad, warn=said.append))

    assert len(said) == 1
    assert "more than --keep allows" in said[0]
    assert set(bad) <= whole_steps(run)
    assert "losses" in run.rolled_up[0]


def test_a_second_process_of_the_rank_goes_on_with_the_first_one_s_past(tmp_path: Path) -> None:
    out = tmp_path / "run"
    of_another = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(out), "3000", "0", "20"], check=False, capture_output=True, text=True
    )
    assert of_another.returncode == 0, of_another.stderr

    recorded(out, 3_000, Keep(n_bytes=1 << 20, n_steps=500), first=3_000)

    run = open_run(out)
    assert [record.step for _, record in run.step_records()] == list(range(6_000))
    assert len(whole_steps(run)) < 2_500


_PROGRAM = """
import sys, time
from pathlib import Path
from hypocenter.record.keeper import Keep
from hypocenter.record.writer import Writer
from tests.record.retained import template, write
keep, of = Keep(n_bytes=1 << int(sys.argv[4]), n_steps=500), template()
writer = Writer(Path(sys.argv[1]), rank=0, warn=print, keep=keep)
for step in range(int(sys.argv[2])):
    write(writer, of, step, is_bad=step == 300)
    if step % 64 == 0:
        print(step, flush=True)
        time.sleep(float(sys.argv[3]))
writer.close()
"""


def assert_every_step_once(run: RecordedRun, n_steps: int) -> None:
    """Each step is there itself or in windows; neither has one twice."""
    records = [record.step for _, record in run.step_records()]
    readings = Counter(reading.step for reading in run.readings(site="w0"))
    windows = [row for row in run.windows().to_pylist() if row["site"] == "w0"]
    told = {step for row in windows for step in range(row["step"], row["last_step"] + 1)}

    assert records == sorted(set(records))
    assert set(readings.values()) <= {1}
    assert sum(row["n_rows"] for row in windows) == len(told)
    assert set(range(n_steps)) == {*readings, *told} == {*records, *told}


def test_a_kill_at_any_moment_leaves_every_step_once(tmp_path: Path) -> None:
    rng = random.Random(20)
    for trial in range(2):
        out = tmp_path / f"run-{trial}"
        command = [sys.executable, "-c", _PROGRAM, str(out), "1000000", "0.001", "18"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            done = 0
            while done < 1_200 + 500 * trial:
                done = int(process.stdout.readline())
            time.sleep(rng.random() * 0.05)
            os.kill(process.pid, signal.SIGKILL)
            done = max([done, *map(int, process.stdout.read().split())])

        run = open_run(out)

        last = run.step_records()[-1][1].step
        assert last >= done
        assert run.problems == ["run.json is missing: command, versions and world size are unknown"]
        assert_every_step_once(run, last + 1)


class Died(BaseException):
    """The process is killed: nothing that it does after that happens."""


def test_death_before_any_change_of_a_file_leaves_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep = Keep(n_bytes=100_000, n_steps=512)
    monkeypatch.setattr(Keeper, "ended", lambda *_: None)
    out = recorded(tmp_path / "run", 9 * BLOCK, keep)
    (writer,) = {part.writer for part in parts_of(out / "rank-00000")}
    keeper = Keeper(out, out / "rank-00000", writer, keep, lambda _: None)
    allowed = [0]

    def dying(change: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **named: Any) -> Any:
            if not allowed[0]:
                raise Died
            allowed[0] -= 1
            return change(*args, **named)

        return act

    monkeypatch.setattr(Path, "replace", dying(Path.replace))
    monkeypatch.setattr(Path, "unlink", dying(Path.unlink))
    n_deaths, is_over = 0, False
    while not is_over:
        allowed[0] = 4
        try:
            keeper.tidy(8)
            is_over = True
        except Died:
            n_deaths += 1
        assert_every_step_once(open_run(out), 9 * BLOCK)

    assert n_deaths > 5
    assert len(parts_of(out / "rank-00000", ("events",))) <= 8
