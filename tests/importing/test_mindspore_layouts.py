"""importing.kinds.mindspore_dump: statistic.csv, names in mapping.csv, trees of Ascend, as documented."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.importing.mindspore_items import statistics

sys.path.insert(0, str(Path(__file__).parent))
from mindspore_trees import OVERFLOWED, TRAINED, copied, folder_of, imported, reading_of  # isort: skip

_TOLD = ("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size", "Data Type", "Shape")
_COUNTS = ("Count", "NaN Count", "Negative Inf Count", "Positive Inf Count")


def row(op: str, io: str, time: int, array: np.ndarray, *, name: str = "") -> list[str]:
    finite = array[np.isfinite(array)].astype(np.float64)
    told = [op, name or f"Default/fc-Dense/{op}-op0", "0", "0", str(time), io, "0", str(array.nbytes)]
    told += [{"float32": "Float32", "float16": "Float16"}[array.dtype.name], f'"({",".join(map(str, array.shape))})"']
    values = [finite.max(), finite.min(), finite.mean(), array.size, np.isnan(array).sum(), np.isneginf(array).sum()]
    return [*told, *(str(v) for v in (*values, np.isposinf(array).sum(), np.linalg.norm(finite)))]


def write(folder: Path, rows: list[list[str]]) -> None:
    folder.mkdir(parents=True)
    head = [*_TOLD, "Max Value", "Min Value", "Avg Value", *_COUNTS, "L2Norm Value"]
    with (folder / "statistic.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


def test_counts_of_statistics_are_exact(tmp_path: Path) -> None:
    x = np.linspace(-3, 5, 24, dtype=np.float32).reshape(4, 6)
    y = x.astype(np.float16) * 2
    y[0, :3], y[1, 0], y[2, 1] = np.nan, np.inf, -np.inf
    write(tmp_path / "rank_2" / "Net" / "0" / "5", [row("Mul", "input", 100, x), row("Mul", "output", 200, y)])

    run = imported(tmp_path, tmp_path / "run", kind=None)

    given_, made = (reading_of(run, "forward", "fc.Mul", port, step=5) for port in ("in[0]", "out[0]"))
    assert run.run.imported is not None
    assert (run.run.imported.kind, run.run.world_size) == ("mindspore-dump", 3)
    assert (made.summary.n, made.summary.n_nan, made.summary.n_posinf, made.summary.n_neginf) == (24, 3, 1, 1)
    assert set(made.lacks.split()) == {"histogram", "sum", "sumsq", "rounded"}
    assert (made.summary.max, made.summary.min) == (float(y[np.isfinite(y)].max()), float(y[np.isfinite(y)].min()))
    assert given_.summary.sum == pytest.approx(float(x.sum()), rel=1e-5)
    assert given_.summary.sumsq == pytest.approx(float((x**2).sum()), rel=1e-5)
    assert (given_.dtype, given_.shape) == ("float32", (4, 6))


def test_columns_are_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "statistic.csv"
    path.write_text(
        "IO,Op Name,Slot,Op Type,Min Value,Data Type,Shape,Max Value\noutput,a/Add-op1,0,Add,-2,FLOAT,3,7\n"
    )

    (found,) = statistics(path, pytest.fail)

    assert (found.summary.min, found.summary.max, found.summary.n) == (-2.0, 7.0, 3)
    assert set(found.lacks.split()) >= {"histogram", "sum", "sumsq"}
    assert (found.name.name, found.name.dtype) == ("a_Add-op1", "float32")


def test_rows_beside_files_do_not_count_twice(tmp_path: Path) -> None:
    """saved_data full: values are better than what was computed of them."""
    dump = copied(TRAINED, tmp_path / "dump")
    name = "Default_network-WithLossCell__backbone-Net_act-ReLU_ReLU-op0"
    rows = [row("ReLU", "output", 1795227767605387, np.zeros((3, 4), np.float32), name=name)]
    write(tmp_path / "aside", rows)
    (tmp_path / "aside" / "statistic.csv").rename(folder_of(dump) / "statistic.csv")

    run = imported(dump, tmp_path / "run")

    found = reading_of(run, "forward", "act.ReLU", "out[0]")
    assert found.summary.absmax > 0
    assert not found.lacks


@given(st.lists(st.lists(st.text(max_size=12), max_size=12), max_size=6))
def test_any_table_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
        csv.writer(file).writerows([[*_TOLD, *_COUNTS, "Max Value", "Min Value"], *rows])
    problems: list[str] = []

    for found in statistics(path, problems.append):
        assert found.summary.n_nonfinite <= found.summary.n


def test_long_names_are_mapped_back(tmp_path: Path) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    folder = folder_of(dump)
    rows: list[tuple[str, str]] = []
    for i, path in enumerate(sorted(folder.glob("*.npy"))):
        rows.append((f"{7919 * i:x}{i}.npy", path.name))
        path.rename(folder / rows[-1][0])
    with (folder / "mapping.csv").open("w", newline="") as file:
        csv.writer(file).writerows([*rows, ("../../../../etc/passwd", rows[0][1]), ("a",), ()])

    run = imported(dump, tmp_path / "run")

    assert compare_runs(imported(TRAINED, tmp_path / "plain"), run).status == "same"


def test_a_tree_of_graph_engine_has_step_and_device(tmp_path: Path) -> None:
    """{step}/{time}/{device}/{model}/{model id}/{iteration}, names with formats in capitals; an overflow dump."""
    folder = tmp_path / "dump" / "12" / "20241101093000" / "3" / "ge_default_1" / "2" / "0"
    folder.mkdir(parents=True)
    scope = "Default_network-WithLossCell__backbone-Net_fc1-Dense"
    name = f"MatMul.{scope}_MatMul-op5.65535.7.1730424600000{{}}.{{}}.0.ND.FLOAT16.npy"
    np.save(folder / name.format(1, "input"), np.full((2, 3), 300, np.float16))
    np.save(folder / name.format(2, "output"), np.array([[np.inf, 1, 2]], np.float16))
    (folder / "Opdebug.Node_OpDebug.65535.7.1730424600003.output.0.json").write_text("{}")

    run = imported(tmp_path / "dump", tmp_path / "run", kind=None)

    found = reading_of(run, "forward", "fc1.MatMul", "out[0]", step=12)
    assert (found.summary.n_posinf, found.lacks, found.dtype) == (1, "", "float16")
    assert run.run.world_size == 4
    assert any("1 operators overflow" in note for note in run.run.imported.notes)  # type: ignore[union-attr]


def test_what_was_chosen_is_said(tmp_path: Path) -> None:
    dump = copied(OVERFLOWED, tmp_path / "dump")
    path = dump / "rank_0" / ".dump_metadata" / "data_dump.json"
    settings = json.loads(path.read_text())
    settings["common_dump_settings"] |= {"op_debug_mode": 3, "dump_mode": 1}
    path.write_text(json.dumps(settings))
    for file in dump.rglob("*.npy"):
        if not file.name.startswith(("Mul.", "Cast.Default_wo")):
            file.unlink()

    run = imported(dump, tmp_path / "run")

    notes = " ".join(run.run.imported.notes)  # type: ignore[union-attr]
    assert "overflowed were dumped" in notes
    assert "only chosen operators" in notes
    assert [f.site for f in diagnose(run).findings] == ["Mul"]
