"""record/writer.py: what was written is on disk after each step, and nothing that goes wrong reaches training."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hypocenter.nouns import Reading, Source, StepRecord, Summary
from hypocenter.record.layout import rank_directory
from hypocenter.record.reader import open_run
from hypocenter.record.writer import Writer

NO_RUN_FILE = "run.json is missing: command, versions and world size are unknown"


def reading(step: int = 0, site: str = "encoder.block.0", **changes: object) -> Reading:
    plain = Reading(
        step=step, microbatch=0, phase="forward", site=site, port="out[0]", order=1, dtype="float16", shape=(2, 3),
        summary=Summary(n=6, n_hist=6, min=-1.0, max=2.0, absmin=0.5, sum=3.0, hist_first=-1, hist=(2, 3, 1)),
    )  # fmt: skip
    return replace(plain, **changes)


def written(directory: Path) -> tuple[list[Reading], list[StepRecord]]:
    run = open_run(directory)
    return list(run.readings()), [step for _, step in run.step_records()]


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def writer(tmp_path: Path, warnings: list[str]) -> Writer:
    return Writer(tmp_path / "run", rank=3, warn=warnings.append)


def test_makes_no_file_before_the_first_write(tmp_path: Path, writer: Writer) -> None:
    writer.close()

    assert not (tmp_path / "run").exists()


def test_is_readable_after_each_write_without_close(tmp_path: Path, writer: Writer, warnings: list[str]) -> None:
    for step in range(3):
        writer.write([reading(step)], StepRecord(step=step, loss=0.5))

        readings, steps = written(tmp_path / "run")
        assert readings == [reading(s) for s in range(step + 1)]
        assert [s.step for s in steps] == list(range(step + 1))
    assert (writer.broken, warnings) == ("", [])


def test_counts_the_bytes_on_disk(tmp_path: Path, writer: Writer) -> None:
    writer.write([reading()], StepRecord(step=0))

    on_disk = sum(f.stat().st_size for f in rank_directory(tmp_path / "run", 3).iterdir())
    assert writer.bytes_written == on_disk > 0


def test_close_seals_to_parquet_and_leaves_no_stream(tmp_path: Path, writer: Writer) -> None:
    writer.write([reading()], StepRecord(step=0))

    writer.close()
    writer.close()

    names = sorted(f.name.split("-")[1] + f.suffix for f in rank_directory(tmp_path / "run", 3).iterdir())
    assert names == ["events.parquet", "steps.parquet"]
    assert written(tmp_path / "run")[0] == [reading()]


def test_close_without_sealing_keeps_the_streams(tmp_path: Path, writer: Writer) -> None:
    writer.write([reading()], StepRecord(step=0))

    writer.close(seal=False)

    assert {f.suffix for f in rank_directory(tmp_path / "run", 3).iterdir()} == {".arrow"}


def test_a_write_after_close_is_ignored(tmp_path: Path, writer: Writer, warnings: list[str]) -> None:
    writer.write([reading()], None)
    writer.close()

    writer.write([reading(1)], None)

    assert written(tmp_path / "run")[0] == [reading()]
    assert warnings == []


WEIRD = {
    "surrogates": ({"site": "caf\udce9"}, "site", "caf\\udce9"),
    "order too big": ({"order": 10**30}, "order", 2**63 - 1),
    "call too big": ({"call": -(10**12)}, "call", -(2**31)),
    "no site": ({"site": None}, "site", ""),
    "an object as op": ({"op": Path("x")}, "op", "x"),
    "a fraction as shape": ({"shape": (2.5, "3", None)}, "shape", (2, 3, 0)),
    "surrogate in names": ({"names": ("a", "\ud800")}, "names", ("a", "\\ud800")),
    "no names": ({"names": None}, "names", ()),
    "source of objects": ({"source": Source(file=Path("f.py"), line="7")}, "source", Source(file="f.py", line=7)),
    "no summary": ({"summary": None}, "summary", Summary()),
    "source is text": ({"source": "model.py:3"}, "source", None),
    "flag is a list": ({"replay": [1]}, "replay", True),
}


@pytest.mark.parametrize(("changes", "name", "kept"), WEIRD.values(), ids=WEIRD.keys())
def test_weird_values_are_mended_with_one_warning(
    tmp_path: Path, writer: Writer, warnings: list[str], changes: dict[str, object], name: str, kept: object
) -> None:
    for step in range(2):
        writer.write([reading(step), reading(step, **changes)], StepRecord(step=step))

    for end in (lambda: None, writer.close):  # while they stand in the journal, and in columns
        end()
        readings, steps = written(tmp_path / "run")
        assert readings == [r for s in range(2) for r in (reading(s), reading(s, **{name: kept}))]
        assert [s.step for s in steps] == [0, 1]
    assert len(warnings) == 1
    assert writer.broken == ""


def test_weird_numbers_in_a_summary_and_a_step_are_mended(tmp_path: Path, writer: Writer, warnings: list[str]) -> None:
    summary = Summary(n=2**70, min="low", absmax=None, sum=10**400, hist=(2**80, -1), sketch=("x", 1.0))

    writer.write([reading(summary=summary)], StepRecord(step=0, loss="nan", grad_norm=object(), finding="\udcff"))

    ((kept,), (step,)) = written(tmp_path / "run")
    assert (kept.summary.n, kept.summary.min, kept.summary.hist) == (2**63 - 1, None, (2**63 - 1, -1))
    assert np.isnan(kept.summary.absmax)
    assert np.isnan(kept.summary.sum)
    assert kept.summary.sketch is not None
    assert kept.summary.sketch[1] == 1.0
    assert np.isnan(step.loss)
    assert (step.grad_norm, step.finding) == (None, "\\udcff")
    assert len(warnings) == 1


def test_numpy_values_need_no_mending(tmp_path: Path, writer: Writer, warnings: list[str]) -> None:
    summary = Summary(n=np.int64(6), absmax=np.float32(2.0), hist=np.arange(3), sketch=np.ones(4, np.float32))

    writer.write([reading(order=np.int32(1), recompute=np.bool_(True), summary=summary)], StepRecord(step=np.int64(0)))

    ((kept,), _) = written(tmp_path / "run")
    assert kept.summary == Summary(n=6, absmax=2.0, hist=(0, 1, 2), sketch=(1.0,) * 4)
    assert kept.recompute is True
    assert warnings == []


def test_what_is_no_reading_is_left_out(tmp_path: Path, writer: Writer, warnings: list[str]) -> None:
    writer.write([None, reading(), "x"], "no step")

    assert written(tmp_path / "run") == ([reading()], [])
    assert len(warnings) == 1


def test_a_deleted_directory_breaks_the_writer_once(tmp_path: Path, writer: Writer, warnings: list[str]) -> None:
    writer.write([reading()], StepRecord(step=0))
    shutil.rmtree(tmp_path / "run")

    for step in range(1, 4):
        writer.write([reading(step)], StepRecord(step=step))
    writer.close()

    assert "deleted" in writer.broken
    assert len(warnings) == 1


def test_a_file_in_the_way_breaks_the_writer_once(tmp_path: Path, warnings: list[str]) -> None:
    (tmp_path / "run").write_text("mine")
    writer = Writer(tmp_path / "run", rank=0, warn=warnings.append)

    for step in range(3):
        writer.write([reading(step)], StepRecord(step=step))
    writer.close()

    assert writer.broken
    assert len(warnings) == 1
    assert (tmp_path / "run").read_text() == "mine"


def test_a_warn_that_fails_is_survived(tmp_path: Path) -> None:
    def warn(text: str) -> None:
        raise RuntimeError(text)

    (tmp_path / "run").write_text("mine")
    writer = Writer(tmp_path / "run", rank=0, warn=warn)

    writer.write([reading()], None)

    assert writer.broken


def child(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that knows `reading` and `Writer`."""
    head = """
        import dataclasses, os, resource, sys
        from pathlib import Path
        from hypocenter.nouns import Reading, StepRecord, Summary
        from hypocenter.record.writer import Writer
        def reading(step):
            noise = Summary(n=1, hist=tuple(os.urandom(30)))
            return Reading(step=step, microbatch=0, phase="forward", site=os.urandom(20).hex(), port="", order=0,
                           summary=noise)
        warnings = []
    """
    program = textwrap.dedent(head) + textwrap.dedent(code)
    return subprocess.run(
        [*prefix, sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=60
    )


def test_a_full_disk_stops_recording_and_keeps_whole_steps(tmp_path: Path) -> None:
    code = """
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))  # bytes in one file
        writer = Writer(Path(sys.argv[1]), rank=0, warn=warnings.append)
        complete = 0
        for step in range(200):
            writer.write([reading(step) for _ in range(20)], StepRecord(step=step))
            complete += not writer.broken
        writer.close()
        print(complete, len(warnings), writer.broken)
    """
    done = child(code, tmp_path)

    complete, n_warnings, reason = done.stdout.split(maxsplit=2)
    run = open_run(tmp_path)
    assert done.stderr == ""
    assert 0 < int(complete) < 200
    assert n_warnings == "1"
    assert "File too large" in reason
    assert [s.step for _, s in run.step_records()] == list(range(int(complete)))
    assert run.table().num_rows == 20 * int(complete)
    assert run.problems == [NO_RUN_FILE]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_tmpfs_stops_recording_and_keeps_whole_steps(tmp_path: Path) -> None:
    code = """
        import subprocess
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", sys.argv[1]], check=True)
        writer = Writer(Path(sys.argv[1]), rank=0, warn=warnings.append)
        complete = 0
        for step in range(200):
            writer.write([reading(step) for _ in range(20)], StepRecord(step=step))
            complete += not writer.broken
        writer.close()
        from hypocenter.record.reader import open_run
        run = open_run(Path(sys.argv[1]))
        print(complete, len(warnings), len(run.step_records()), run.table().num_rows, writer.broken)
    """
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("no private mounts here")
    done = child(code, tmp_path, prefix=("unshare", "-m"))

    complete, n_warnings, n_steps, n_rows, reason = done.stdout.split(maxsplit=4)
    assert 0 < int(complete) < 200
    assert (n_warnings, int(n_steps)) == ("1", int(complete))
    assert int(n_rows) - 20 * int(complete) in (0, 20)  # a step's rows go first: its record may not fit any more
    assert "No space left" in reason


def test_a_read_only_directory_stops_recording(tmp_path: Path) -> None:
    code = """
        os.chmod(sys.argv[1], 0o500)
        if os.geteuid() == 0:
            os.setuid(65534)
        writer = Writer(Path(sys.argv[1]) / "run", rank=0, warn=warnings.append)
        for step in range(3):
            writer.write([reading(step)], StepRecord(step=step))
        writer.close()
        print(len(warnings), writer.broken)
    """
    target = tmp_path / "locked"
    target.mkdir()

    done = child(code, target)

    assert done.stdout.startswith("1 PermissionError"), done


def test_a_forked_child_writes_nothing(tmp_path: Path, writer: Writer) -> None:
    writer.write([reading(0)], StepRecord(step=0))

    pid = os.fork()
    if pid == 0:
        try:
            writer.write([reading(7)], StepRecord(step=7))
            writer.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    writer.write([reading(1)], StepRecord(step=1))
    writer.close()

    readings, steps = written(tmp_path / "run")
    assert readings == [reading(0), reading(1)]
    assert [s.step for s in steps] == [0, 1]


def test_a_signal_in_the_middle_of_a_write_does_not_mix_batches(tmp_path: Path) -> None:
    code = """
        import signal
        writer = Writer(Path(sys.argv[1]), rank=0, warn=warnings.append)
        signal.signal(signal.SIGALRM, lambda *_: writer.write([reading(1000)], StepRecord(step=1000)))
        signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
        for step in range(100):
            writer.write([reading(step)] * 200, StepRecord(step=step))
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(warnings, writer.broken)
    """
    done = child(code, tmp_path)

    run = open_run(tmp_path)
    assert done.stdout == "[] \n", done
    assert run.problems == [NO_RUN_FILE]
    assert [s.step for _, s in run.step_records() if s.step < 1000] == list(range(100))


def test_a_reused_process_number_gets_files_of_its_own(tmp_path: Path, warnings: list[str]) -> None:
    for step in range(3):
        again = Writer(tmp_path, rank=0, warn=warnings.append)
        again.write([reading(step)], StepRecord(step=step))
        again.close(seal=step == 0)

    readings, _ = written(tmp_path)
    assert readings == [reading(0), reading(1), reading(2)]
    assert warnings == []


def test_imports_nothing_heavy() -> None:
    code = """
        heavy = {"torch", "duckdb", "rich", "click", "jinja2", "safetensors", "pandas", "pyarrow.parquet"}
        print(sorted(heavy & set(sys.modules)))
    """
    assert child(code).stdout == "[]\n"


def test_seals_at_the_exit_of_the_interpreter(tmp_path: Path) -> None:
    code = """
        import atexit
        writer = Writer(Path(sys.argv[1]), rank=0, warn=print)
        atexit.register(writer.close)
        writer.write([reading(0)], StepRecord(step=0))
    """
    done = child(code, tmp_path)

    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
    assert {f.suffix for f in rank_directory(tmp_path, 0).iterdir()} == {".parquet"}


def test_every_acknowledged_step_survives_sigkill(tmp_path: Path) -> None:
    # given one process that forks writers, each writing as fast as it can, and kills each at a random moment
    code = """
        import random, signal, time
        random.seed(20)
        template = [reading(0) for _ in range(50)]
        Writer(Path(sys.argv[1]) / "loaded", rank=0, warn=print).write(template)  # Arrow imports a lot at first

        def write_and_acknowledge(directory, pipe):
            writer = Writer(directory, rank=0, warn=lambda _: None)
            for step in range(1_000_000):
                writer.write([dataclasses.replace(r, step=step) for r in template], StepRecord(step=step))
                os.write(pipe, step.to_bytes(8, "little"))

        for number in range(20):
            receive, send = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    write_and_acknowledge(Path(sys.argv[1]) / str(number), send)
                finally:
                    os._exit(1)
            os.close(send)
            data = os.read(receive, 8)  # its first step is done
            time.sleep(random.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            while piece := os.read(receive, 1 << 16):
                data += piece
            os.close(receive)
            print(int.from_bytes(data[-8:], "little"))
    """

    acknowledged = [int(line) for line in child(code, tmp_path).stdout.split()]

    # then every acknowledged step can be read, and at most the one under way is missing
    assert len(acknowledged) == 20
    assert sum(last > 3 for last in acknowledged) >= 10, acknowledged
    for number, last in enumerate(acknowledged):
        run = open_run(tmp_path / str(number))
        steps = [step.step for _, step in run.step_records()]
        assert steps[: last + 1] == list(range(last + 1))
        assert len(steps) <= last + 2
        assert len(list(run.readings(steps=range(last + 1)))) == 50 * (last + 1)
