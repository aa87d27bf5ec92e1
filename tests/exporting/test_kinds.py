"""exporting/kinds: each export is opened with the reader of the tool that it is for, and holds what the run does."""

from __future__ import annotations

import csv
import json
import math
from itertools import pairwise
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from exported_run import CALLS, STARTED_NS, record

from hypocenter.exporting.catalogue import EXPORTERS, Export, export
from hypocenter.exporting.timeline import FINDINGS, MODULES, STEPS
from hypocenter.record.reader import open_run


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return record(tmp_path / "run")


def exported(recording: Path, kind: str) -> Export:
    return export(open_run(recording), kind, recording.parent / "out")


def test_parquet_is_read_by_duckdb_and_pyarrow(recording: Path) -> None:
    out = exported(recording, "parquet").out

    rows = duckdb.sql(
        f"select site, rank, sum(n_posinf) from '{out}/readings.parquet' where n_posinf > 0 group by all order by rank"
    ).fetchall()
    assert rows == [("model.mlp", 0, 5), ("model.mlp", 1, 5)]
    steps = pq.read_table(out / "steps.parquet")
    assert steps["step"].to_pylist() == [0, 1, 2] * 2
    assert steps["rank"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert math.isnan(steps["loss"][2].as_py())
    readings = pq.read_table(out / "readings.parquet")
    assert readings.select(open_run(recording).table().column_names).num_rows == open_run(recording).table().num_rows
    assert readings["hist"][0].as_py() == [3, 0, 9]
    findings = pq.read_table(out / "findings.parquet").to_pylist()
    assert {row["severity"] for row in findings} >= {"error"}
    assert all(json.loads(row["whole"])["code"] == row["code"] for row in findings)


def test_csv_is_read_back_cell_by_cell(recording: Path) -> None:
    made = exported(recording, "csv")

    with (made.out / "readings.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    first = open_run(recording).table().to_pylist()[0]
    assert len(rows) == open_run(recording).table().num_rows
    assert (rows[0]["site"], rows[0]["rank"], rows[0]["digest"]) == (first["site"], "0", "")
    assert json.loads(rows[0]["names"]) == list(first["names"])
    assert float(rows[0]["absmax"]) == first["absmax"]
    with (made.out / "steps.csv").open(encoding="utf-8", newline="") as file:
        assert [row["loss"] for row in csv.DictReader(file)] == ["3.0", "2.0", "nan"] * 2
    assert any("formula" in note for note in made.notes)


def test_tensorboard_reads_scalars_histograms_and_findings(recording: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out = exported(recording, "tensorboard").out

    events = accumulator.EventAccumulator(str(out / "rank-00001"), {"histograms": 0})
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")][:2] == [(0, 3.0), (1, 2.0)]
    assert events.Scalars("loss")[0].wall_time == pytest.approx(STARTED_NS / 1e9 + 0.010, abs=1e-5)
    tag = "forward/model.mlp.up/out[0] (log2 of magnitudes)"
    assert {e.step for e in events.Histograms(tag)} == {0, 1, 2}
    assert events.Histograms(tag)[0].histogram_value.bucket == [0.0, 3.0, 0.0, 9.0]
    texts = accumulator.EventAccumulator(str(out / "rank-00000"))
    texts.Reload()
    assert [tag for tag in texts.Tags()["tensors"] if tag.startswith("findings/HC")]


def test_chrome_trace_nests_and_names_what_has_no_times(recording: Path) -> None:
    made = exported(recording, "chrome-trace")

    trace = json.loads(made.out.read_text(encoding="utf-8"))
    events = trace["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"rank 0", "rank 1"}
    assert names[0, 1] == STEPS
    assert "no times" in MODULES
    slices = [e for e in events if e["ph"] == "X"]
    steps = [e for e in slices if names[e["pid"], e["tid"]] == STEPS and e["pid"] == 0]
    assert [(e["ts"], e["dur"]) for e in steps] == [(0.0, 10_000.0), (10_000.0, 11_000.0), (21_000.0, 12_000.0)]
    assert steps[2]["args"]["loss"] == "NaN"  # JSON has no NaN
    assert_nested(
        [
            (e["ts"], e["ts"] + e["dur"], e["name"])
            for e in slices
            if names[e["pid"], e["tid"]] == MODULES and e["pid"] == 0
        ],
        1e-3,  # microseconds: what float64 loses
    )
    assert [e["args"]["value"] for e in events if e["ph"] == "C" and e["name"] == "grad_norm"] == [1.0] * 6
    assert {e["pid"] for e in events if e["ph"] == "i" and e["s"] == "t"} <= {0, 1}
    assert trace["otherData"]["notes"] == made.notes
    assert any("modules have no times" in note for note in made.notes)


def test_perfetto_reads_processes_tracks_slices_and_counters(recording: Path) -> None:
    protos = pytest.importorskip("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    out = exported(recording, "perfetto").out

    trace = protos.Trace.FromString(out.read_bytes())
    described = {p.track_descriptor.uuid: p.track_descriptor for p in trace.packet if p.HasField("track_descriptor")}
    assert sorted(d.process.process_name for d in described.values() if d.HasField("process")) == ["rank 0", "rank 1"]
    by_track: dict[tuple[str, str], list[object]] = {}
    for packet in trace.packet:
        if packet.HasField("track_event"):
            track = described[packet.track_event.track_uuid]
            key = described[track.parent_uuid].process.process_name, track.name
            by_track.setdefault(key, []).append(packet)
    kinds = protos.TrackEvent
    begins = [p for p in by_track["rank 1", STEPS] if p.track_event.type == kinds.TYPE_SLICE_BEGIN]
    assert [p.track_event.name for p in begins] == ["step 0", "step 1", "step 2"]
    assert begins[0].timestamp == STARTED_NS + 1
    assert {a.name: a.double_value for a in begins[1].track_event.debug_annotations}["loss"] == 2.0
    assert_nested(slices_of(by_track["rank 0", MODULES], kinds))
    losses = [p.track_event.double_counter_value for p in by_track["rank 0", "loss"]]
    assert losses == [3.0, 2.0]  # NaN has no place on the axis of a counter
    marks = by_track["rank 0", FINDINGS]
    assert {p.track_event.type for p in marks} == {kinds.TYPE_INSTANT}
    assert all(described[d.parent_uuid].HasField("process") for d in described.values() if d.parent_uuid)


def slices_of(packets: list, kinds: object) -> list[tuple[int, int, str]]:
    """Begins matched with ends as Perfetto does: in the order of time, an end is that of the innermost open slice."""
    found: list[tuple[int, int, str]] = []
    stack: list[tuple[int, str]] = []
    for packet in sorted(packets, key=lambda p: p.timestamp):
        if packet.track_event.type == kinds.TYPE_SLICE_BEGIN:
            stack.append((packet.timestamp, packet.track_event.name))
        else:
            begin, name = stack.pop()
            found.append((begin, packet.timestamp, name))
    assert stack == []
    return found


def assert_nested(slices: list[tuple[float, float, str]], within: float = 0) -> None:
    """Those of a track lie beside or in each other, as calls of the modules do: attn and mlp in model, up in mlp."""
    assert len(slices) == 3 * 2 * len(CALLS)
    ordered = sorted(slices, key=lambda s: (s[0], -s[1]))
    for one, other in pairwise(ordered):
        assert other[0] >= one[1] - within or other[1] <= one[1] + within
    whole, attention, mlp, up = ordered[:4]
    assert [s[2] for s in ordered[:4]] == [site for site, _, _ in CALLS]
    assert whole[0] <= attention[0] < attention[1] <= mlp[0] < up[0] < up[1] < mlp[1] <= whole[1]


@pytest.mark.parametrize("kind", list(EXPORTERS.entries()))
def test_a_recording_without_any_times_or_readings_is_exported(kind: str, tmp_path: Path) -> None:
    from hypocenter.nouns import StepRecord
    from hypocenter.record.run_file import start_run
    from hypocenter.record.writer import Writer

    start_run(tmp_path / "run", [], {}, 1, {})
    writer = Writer(tmp_path / "run", rank=0, warn=lambda text: pytest.fail(text))
    writer.write([], StepRecord(step=0, loss=math.inf, step_ms=0.0, tap_ms=math.inf))
    writer.close()

    made = export(open_run(tmp_path / "run"), kind, tmp_path / "out")

    assert made.out.exists()
    if kind in ("perfetto", "chrome-trace"):
        assert "the recording has no times: each step is drawn 1 ms long" in made.notes
