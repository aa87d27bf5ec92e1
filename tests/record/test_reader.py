"""record/reader.py: a recording is read as far as it can be trusted, and nothing in it makes a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.errors import CorruptRecordingError, NoRecordingError, UnknownNameError
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record import writer as writer_module
from hypocenter.record.layout import FORMAT, rank_directory
from hypocenter.record.reader import open_run
from hypocenter.record.run_file import start_run
from hypocenter.record.salvage import salvage
from hypocenter.record.schema import READINGS, STEPS
from hypocenter.record.writer import Writer


def reading(step: int, site: str = "a", order: int = 0, phase: str = "forward") -> Reading:
    return Reading(step=step, microbatch=0, phase=phase, site=site, port="out[0]", order=order, summary=Summary(n=step))


def record(
    directory: Path, steps: range, *, rank: int = 0, world_size: int = 1, close: bool = True, seal: bool = True
) -> Writer:
    """Record two readings and a step record for each step."""
    start_run(directory, ["python", "train.py"], {"level": "modules"}, world_size, {"torch": "2.13.0"})
    writer = Writer(directory, rank=rank, warn=pytest.fail)
    for step in steps:
        writer.write([reading(step, "b", 1), reading(step, "a", 0)], StepRecord(step=step, loss=float(step)))
    if close:
        writer.close(seal=seal)
    return writer


@pytest.fixture
def blocks_of_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step becomes a batch of its stream at once."""
    monkeypatch.setattr(writer_module, "STEPS_OF_BLOCK", 1)


def only_file(directory: Path, pattern: str) -> Path:
    (found,) = directory.glob(f"rank-*/{pattern}")
    return found


def steps_of(directory: Path) -> list[int]:
    return [step.step for _, step in open_run(directory).step_records()]


def test_gives_back_run_ranks_and_rows(tmp_path: Path) -> None:
    for rank in (1, 0):
        record(tmp_path, range(3), rank=rank, world_size=2)

    run = open_run(tmp_path)

    assert (run.run.command, run.run.config, run.run.world_size) == (("python", "train.py"), {"level": "modules"}, 2)
    assert (run.ranks, run.problems) == ([0, 1], [])
    assert run.table()["rank"].to_pylist() == [0] * 6 + [1] * 6
    assert run.table(1)["step"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert run.steps()["loss"].to_pylist() == [0.0, 1.0, 2.0] * 2
    assert run.step_records()[3] == (1, StepRecord(step=0, loss=0.0))
    assert run.sites() == ["a", "b"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({"steps": [0, 2]}, {(0, "x.wi"), (0, "x.wo"), (2, "x.wi"), (2, "x.wo")}),
        ({"steps": range(1, 2)}, {(1, "x.wi"), (1, "x.wo")}),
        ({"site": "*.wo", "steps": {1}}, {(1, "x.wo")}),
        ({"phase": "backward"}, {(0, "x.wo"), (1, "x.wo"), (2, "x.wo")}),
        ({"site": "nothing*"}, set()),
        ({"steps": []}, set()),
        ({"rank": 0, "site": "x.w[i]", "steps": {2}}, {(2, "x.wi")}),
    ],
)
def test_readings_pass_every_filter(tmp_path: Path, filters: dict[str, object], expected: set[tuple[int, str]]) -> None:
    writer = Writer(tmp_path, rank=0, warn=pytest.fail)
    for step in range(3):
        writer.write([reading(step, "x.wi"), reading(step, "x.wo", phase="backward")], StepRecord(step=step))

    found = open_run(tmp_path).readings(**filters)

    assert {(r.step, r.site) for r in found} == expected


def test_an_unknown_rank_is_named(tmp_path: Path) -> None:
    record(tmp_path, range(1))

    with pytest.raises(UnknownNameError) as caught:
        open_run(tmp_path).table(4)

    assert str(caught.value) == (
        f"error[unknown-name]: rank 4 is not in the recording\n  --> {tmp_path}\n   = fix: it holds 1 ranks, 0 to 0"
    )


def test_lists_evidence_by_rank(tmp_path: Path) -> None:
    record(tmp_path, range(1), rank=1)
    record(tmp_path, range(1), rank=0)
    wanted = [rank_directory(tmp_path, r) / "bundles" / f"step-{s}" / "evidence.json" for r in (0, 1) for s in (1, 2)]
    for path in reversed(wanted):
        path.parent.mkdir(parents=True)
        path.write_text("{}")

    assert open_run(tmp_path).evidence_files() == [(0, wanted[0]), (0, wanted[1]), (1, wanted[2]), (1, wanted[3])]


# --- no recording


def test_a_missing_path_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(NoRecordingError, match="no recording found") as caught:
        open_run(tmp_path / "nowhere")

    assert caught.value.exit_code == 4
    assert caught.value.why == "there is no such directory"


def test_a_name_alone_is_looked_for_among_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "runs" / "mine", range(1))

    with pytest.raises(NoRecordingError) as caught:
        open_run("mine")

    assert caught.value.fix == f"name the one in runs: {Path('runs') / 'mine'}"


def test_a_folder_of_recordings_names_the_newest(tmp_path: Path) -> None:
    record(tmp_path / "20250101-1", range(1))
    record(tmp_path / "20250102-1", range(1))

    with pytest.raises(NoRecordingError) as caught:
        open_run(tmp_path)

    assert caught.value.why == "it is a folder of 2 recordings"
    assert caught.value.fix == f"name one of them: {tmp_path / '20250102-1'}"


@pytest.mark.parametrize("part", ["run.json", "rank-00000"])
def test_a_part_of_a_recording_names_the_whole(tmp_path: Path, part: str) -> None:
    record(tmp_path, range(1))

    with pytest.raises(NoRecordingError) as caught:
        open_run(tmp_path / part)

    assert caught.value.fix == f"name the run directory: {tmp_path}"


def test_a_foreign_folder_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()

    with pytest.raises(NoRecordingError, match="no recording found"):
        open_run(tmp_path)


def test_a_run_without_any_rank_is_empty(tmp_path: Path) -> None:
    start_run(tmp_path, ["x"], {}, 1, {})

    with pytest.raises(NoRecordingError, match="the recording is empty"):
        open_run(tmp_path)


# --- cut, missing, doubled


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "per_step"), [("events", 2), ("steps", 1)])
def test_a_stream_cut_at_any_byte_gives_its_whole_batches(
    tmp_path: Path, kind: str, per_step: int, blocks_of_one_step: None
) -> None:
    record(tmp_path / "whole", range(2), seal=False)
    data = only_file(tmp_path / "whole", f"{kind}-*.arrow").read_bytes()
    schema = {"events": READINGS, "steps": STEPS}[kind]
    cut = tmp_path / "cut.arrow"

    counts: list[int] = []
    cut.write_bytes(data)
    for size in range(len(data), -1, -1):
        os.truncate(cut, size)
        counts.append(salvage(cut, schema).table.num_rows)

    assert counts == sorted(counts, reverse=True)
    assert set(counts) == {0, per_step, 2 * per_step}


def test_a_cut_stream_is_a_problem_that_says_what_is_left(tmp_path: Path, blocks_of_one_step: None) -> None:
    record(tmp_path, range(3), seal=False)
    stream = only_file(tmp_path, "events-*.arrow")
    os.truncate(stream, stream.stat().st_size - 100)

    run = open_run(tmp_path)

    (problem,) = run.problems
    assert problem.startswith(f"rank-00000/{stream.name}: cut or damaged after 4 rows")
    assert run.table().num_rows == 4
    assert run.steps().num_rows == 3


def test_flipped_bits_never_make_a_traceback(tmp_path: Path) -> None:
    record(tmp_path, range(3), seal=False)
    stream = only_file(tmp_path, "events-*.arrow")
    whole = stream.read_bytes()
    rng = random.Random(7)

    for _ in range(400):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 1, 4, 40))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        stream.write_bytes(data)
        run = open_run(tmp_path)
        assert run.table().num_rows <= 6
        list(run.readings())


def test_flipped_bits_in_a_sealed_file_never_make_a_traceback(tmp_path: Path) -> None:
    record(tmp_path, range(3))
    sealed = only_file(tmp_path, "sealed-events-*.parquet")
    whole = sealed.read_bytes()
    rng = random.Random(7)

    for _ in range(200):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        sealed.write_bytes(data)
        list(open_run(tmp_path).readings())


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"\xff" * 4096, b"hello", os.urandom(5000)])
def test_a_garbage_file_among_the_streams_is_listed(tmp_path: Path, data: bytes) -> None:
    record(tmp_path, range(2))
    (tmp_path / "rank-00000" / "events-other-9.arrow").write_bytes(data)
    (tmp_path / "rank-00000" / "notes.txt").write_bytes(data)
    (tmp_path / "rank-00000" / "sealed-steps-other-9.parquet").write_bytes(data)

    run = open_run(tmp_path)

    assert run.table().num_rows == 4
    assert any(p.startswith("rank-00000/sealed-steps-other-9.parquet: cannot be read") for p in run.problems)
    assert any(p.startswith("rank-00000/events-other-9.arrow: holds nothing readable") for p in run.problems)


def test_a_stream_of_another_tool_is_listed(tmp_path: Path) -> None:
    record(tmp_path, range(2))
    foreign = pa.table({"step": [1, 2], "loss": [0.5, 0.25]})
    with pa.ipc.new_stream(str(tmp_path / "rank-00000" / "events-x-1.arrow"), foreign.schema) as stream:
        stream.write_table(foreign)

    run = open_run(tmp_path)

    assert run.table().num_rows == 4
    assert "column 'microbatch' is missing" in run.problems[0]


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    for rank in (0, 2, 3):
        record(tmp_path, range(1), rank=rank, world_size=5)

    assert open_run(tmp_path).problems == ["2 of 5 ranks left no recording: 1, 4"]


def test_a_rank_with_nothing_in_it_is_named(tmp_path: Path) -> None:
    record(tmp_path, range(1), world_size=2)
    rank_directory(tmp_path, 1).mkdir()

    run = open_run(tmp_path)

    assert run.problems == ["rank 1 recorded no step"]
    assert run.table(1).num_rows == 0


def test_two_processes_of_one_rank_are_both_read_in_order_of_start(tmp_path: Path) -> None:
    record(tmp_path, range(3))
    first = {p.name: p for p in (tmp_path / "rank-00000").iterdir()}
    for name, path in first.items():
        path.rename(path.with_name(name.replace(str(os.getpid()), "999999999")))
    record(tmp_path, range(2, 5), seal=False)

    run = open_run(tmp_path)

    assert steps_of(tmp_path) == [0, 1, 2, 2, 3, 4]
    assert len(run.problems) == 1
    assert run.problems[0].startswith("rank 0 was written by 2 processes")


# --- sealing


def test_sealed_and_stream_side_by_side_count_once(tmp_path: Path) -> None:
    record(tmp_path / "a", range(3), seal=False)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    open_run(tmp_path / "b").seal()

    for name in ("events", "steps"):
        shutil.copy(only_file(tmp_path / "b", f"sealed-{name}-*"), tmp_path / "a" / "rank-00000")

    assert steps_of(tmp_path / "a") == [0, 1, 2]
    assert open_run(tmp_path / "a").table().equals(open_run(tmp_path / "b").table())


def test_a_stream_that_grew_after_sealing_is_read_whole(tmp_path: Path) -> None:
    writer = record(tmp_path, range(2), close=False)
    open_run(tmp_path).seal()

    writer.write([], StepRecord(step=2))

    assert steps_of(tmp_path) == [0, 1, 2]
    assert len(open_run(tmp_path).seal()) == 1
    assert open_run(tmp_path).seal() == []


def test_sealed_rows_outlive_a_stream_cut_later(tmp_path: Path) -> None:
    record(tmp_path, range(3), close=False)
    open_run(tmp_path).seal()
    stream = only_file(tmp_path, "steps-*.arrow")

    os.truncate(stream, stream.stat().st_size // 2)

    assert steps_of(tmp_path) == [0, 1, 2]
    assert open_run(tmp_path).problems == []


def test_sealing_removes_only_streams_with_an_end(tmp_path: Path) -> None:
    record(tmp_path / "ended", range(3), seal=False)
    record(tmp_path / "killed", range(3), close=False)
    before = {name: open_run(tmp_path / name).table() for name in ("ended", "killed")}

    for name in ("ended", "killed"):
        assert len(open_run(tmp_path / name).seal()) == 2

    assert not list((tmp_path / "ended").glob("rank-*/*.arrow"))
    assert len(list((tmp_path / "killed").glob("rank-*/*.arrow"))) == 2
    for name, table in before.items():
        assert open_run(tmp_path / name).table().equals(table)


def test_sealed_floats_are_byte_stream_split_and_zstd(tmp_path: Path) -> None:
    record(tmp_path, range(3))

    with pq.ParquetFile(only_file(tmp_path, "sealed-events-*")) as file:
        group = file.metadata.row_group(0)
        columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}

    assert {c.compression for c in columns.values()} == {"ZSTD"}
    assert "BYTE_STREAM_SPLIT" in columns["sumsq"].encodings
    assert "BYTE_STREAM_SPLIT" not in columns["site"].encodings


# --- run.json


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "3", '"x"', "[" * 5000, '{"format": "one"}', '{"format": 1}', '{"format": 1, "name": 7}',
        '{"format": 1, "name": "x", "status": "on fire"}', '{"format": 1, "name": "x", "world_size": "many"}',
        '{"format": 1, "name": "x", "config": [1]}', '{"format": NaN, "name": "x"}', "\x00\x01",
        '{"format": 1, "name": "\ud800"}',
    ],
)  # fmt: skip
def test_a_hostile_run_file_is_a_problem(tmp_path: Path, text: str) -> None:
    record(tmp_path, range(2))
    (tmp_path / "run.json").write_bytes(text.encode("utf-8", "surrogatepass"))

    run = open_run(tmp_path)

    assert steps_of(tmp_path) == [0, 1]
    assert len(run.problems) == 1
    assert run.problems[0].startswith("run.json cannot be read")
    assert run.run.name == tmp_path.name


def test_a_missing_run_file_is_a_problem(tmp_path: Path) -> None:
    record(tmp_path, range(2))
    (tmp_path / "run.json").unlink()

    assert open_run(tmp_path).problems == ["run.json is missing: command, versions and world size are unknown"]


def test_an_absurd_world_size_is_no_long_list(tmp_path: Path) -> None:
    record(tmp_path, range(1), world_size=10**15)

    (problem,) = open_run(tmp_path).problems

    assert problem.startswith("999,999,999,999,999 of 1,000,000,000,000,000 ranks left no recording: 1, 2, 3")
    assert len(problem) < 200


def test_unknown_fields_of_a_run_file_are_passed_over(tmp_path: Path) -> None:
    record(tmp_path, range(1))
    path = tmp_path / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"colour": "red"}))

    assert open_run(tmp_path).problems == []


def newer_run_file(directory: Path) -> None:
    (directory / "run.json").write_text(json.dumps({"format": FORMAT + 1, "anything": "else"}))


def newer_stream(directory: Path) -> None:
    schema = READINGS.with_metadata({"hypocenter.format": str(FORMAT + 1)})
    with pa.ipc.new_stream(str(directory / "rank-00000" / "events-new-1.arrow"), schema):
        pass


@pytest.mark.parametrize("make_newer", [newer_run_file, newer_stream])
def test_a_newer_format_is_a_clear_error(tmp_path: Path, make_newer: Callable[[Path], None]) -> None:
    record(tmp_path, range(1))
    make_newer(tmp_path)

    with pytest.raises(CorruptRecordingError) as caught:
        open_run(tmp_path).table()

    assert caught.value.what == f"the recording has format {FORMAT + 1}, this version reads up to {FORMAT}"
    assert caught.value.fix == "update Hypocenter as it was installed; in a clone: git pull, then pip install ."


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_rank_is_a_problem(tmp_path: Path) -> None:
    record(tmp_path, range(1), rank=0, world_size=2)
    record(tmp_path, range(1), rank=1, world_size=2)
    rank_directory(tmp_path, 1).chmod(0)
    try:
        assert "rank-00001 cannot be read: Permission denied" in open_run(tmp_path).problems
    finally:
        rank_directory(tmp_path, 1).chmod(0o700)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300))
def test_any_bytes_as_run_file_still_give_the_run(tmp_path: Path, data: bytes) -> None:
    rank_directory(tmp_path, 0).mkdir(exist_ok=True)
    (tmp_path / "run.json").write_bytes(data)

    assert open_run(tmp_path).ranks == [0]


# --- many ranks


def test_a_scan_gives_wanted_rows_and_columns_of_each_rank_in_turn(tmp_path: Path) -> None:
    for rank in range(5):
        record(tmp_path, range(rank + 1), rank=rank, world_size=5, seal=rank % 2 == 0)
    run = open_run(tmp_path)

    def late(batch: pa.RecordBatch) -> pa.Array:
        return pa.compute.greater(batch["step"], 1)

    for _ in range(2):  # read from the files, then with what is known of them
        found = list(run.scan(late, columns=("site", "rank"), needs=("step",)))
        assert [rank for rank, _ in found] == [0, 1, 2, 3, 4]
        assert [table.num_rows for _, table in found] == [0, 0, 2, 4, 6]
        assert [table.column_names for _, table in found] == [["site", "rank"]] * 5
        assert found[4][1].to_pylist() == [{"site": s, "rank": 4} for s in "bababa"]
    assert [rank for rank, _ in run.scan(ranks=[3, 1])] == [3, 1]


def test_what_does_not_fit_in_memory_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(4):
        record(tmp_path, range(3), rank=rank, world_size=4)
    expected = open_run(tmp_path)
    monkeypatch.setattr("hypocenter.record.reader._KEPT_BYTES", 1)
    run = open_run(tmp_path)

    assert run.table().equals(expected.table())
    assert run.steps().equals(expected.steps())
    assert [t.column("site").to_pylist() for _, t in run.scan(columns=["site"])] == [["b", "a"] * 3] * 4
    assert (run.n_rows, run.site_names, run.problems) == (4 * 9, {"a", "b"}, [])
    assert run.sites() == ["a", "b"]


def test_fewer_columns_never_give_more_rows_of_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypocenter.record.reader._KEPT_BYTES", 1)
    for rank in range(2):
        record(tmp_path, range(3), rank=rank, world_size=2)
    sealed = next(rank_directory(tmp_path, 1).glob("sealed-events-*"))
    data = bytearray(sealed.read_bytes())
    with pq.ParquetFile(sealed) as file:
        column = file.metadata.row_group(0).column(READINGS.get_field_index("sumsq"))
    data[column.data_page_offset] ^= 0xFF
    sealed.write_bytes(data)
    run = open_run(tmp_path)

    whole = run.table(1).num_rows
    few = [table.num_rows for _, table in run.scan(columns=["site"])]

    assert few == [6, whole]
    assert whole == 0
    assert len(run.problems) == 1
