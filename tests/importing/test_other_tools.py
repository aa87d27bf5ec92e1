"""importing.kinds.ptdbg and msprobe_monitor."""

from __future__ import annotations

import csv
import json
import math
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose

sys.path.insert(0, str(Path(__file__).parent))
from dumps import MSPROBE, PTDBG, imported, row, rows  # isort: skip


def test_both_ways_of_writing_names_give_the_same_run(tmp_path: Path) -> None:
    dots, bars = (
        imported(PTDBG / "v3.0_dot_all", tmp_path / "a"),
        imported(PTDBG / "v3.0_underscore_all", tmp_path / "b"),
    )

    assert {r.site for r in dots.readings()} >= {"Functional.layer_norm", "Functional.cross_entropy", "Tensor.add_"}
    found = compare_runs(dots, bars)
    assert (found.status, found.n_differ) == ("same", 0)


def test_lines_give_the_tools_numbers_and_the_users_line(tmp_path: Path) -> None:
    run = imported(PTDBG / "v3.0_dot_all", tmp_path / "run")
    first = json.loads(next((PTDBG / "v3.0_dot_all").rglob("step0/*/*.pkl")).read_text().partition("\n")[0])

    reading = row(run, step=0, site="Functional.linear", phase="forward", port="in[0]", call=0)

    assert (reading.summary.max, reading.summary.min) == pytest.approx(first[5][:2])
    assert reading.source is not None
    assert (reading.source.file, reading.source.line) == ("/home/me/train/run.py", 8)
    assert [record.loss for _, record in run.step_records()] == pytest.approx([1.22744, 0.89032], abs=1e-5)


def test_values_beside_the_lines_are_exact(tmp_path: Path) -> None:
    run = imported(PTDBG / "v3.0_dot_all", tmp_path / "run")
    file = next((PTDBG / "v3.0_dot_all").rglob("Functional.linear.0.forward.output.npy"))

    reading = row(run, step=0, site="Functional.linear", phase="forward", port="out[0]", call=0)

    values = np.load(file)
    assert reading.lacks == ""
    assert reading.summary.sumsq == pytest.approx(float(np.square(values.astype(np.float64)).sum()))
    assert list((tmp_path / "run").rglob("*.safetensors"))


def test_checksums_are_the_crc_of_the_bytes(tmp_path: Path) -> None:
    run = imported(PTDBG / "v3.0_dot_md5", tmp_path / "run")
    values = np.load(next((PTDBG / "v3.0_dot_all").rglob("Functional.linear.0.forward.input.1.npy")))

    reading = row(run, site="Functional.linear", phase="forward", port="in[1]", call=0)

    assert reading.digest == zlib.crc32(values.tobytes())
    assert reading.lacks == "counts histogram extremes sum sumsq"
    assert diagnose(run).status == "cannot-tell"


def test_summaries_of_three_numbers_have_no_norm(tmp_path: Path) -> None:
    folder = tmp_path / "ptdbg_dump_v2.0" / "step3" / "rank1"
    folder.mkdir(parents=True)
    line = ["Functional_layer_norm_12_forward_output", 0, [], "torch.float16", [2, 8], [2.5, -1.5, 0.5]]
    (folder / "dump.pkl").write_text(json.dumps(line) + "\n")

    run = imported(tmp_path / "ptdbg_dump_v2.0", tmp_path / "run")

    reading = row(run, site="Functional.layer_norm")
    assert (reading.step, run.ranks, reading.dtype) == (3, [1], "float16")
    assert (reading.summary.sum, reading.summary.sumsq) == (8.0, 0.0)
    assert reading.lacks.split() == ["histogram", "sumsq", "rough"]


def test_the_monitors_rows_have_the_numbers_of_their_files(tmp_path: Path) -> None:
    run = imported(MSPROBE / "monitor_csv", tmp_path / "run")

    ours = {(r.site, r.port): r for r in run.readings()}
    with (MSPROBE / "monitor_csv" / "grad_reduced_0-0.csv").open() as file:
        theirs = {line["name"]: line for line in csv.DictReader(file)}
    assert theirs
    for name, line in theirs.items():
        reading = ours[name, "grad"]
        assert (reading.summary.min, reading.summary.max) == (float(line["min"]), float(line["max"]))
        assert reading.summary.sumsq == pytest.approx(float(line["norm"]) ** 2)
        assert "rounded" in reading.lacks.split()


def test_gradients_that_were_written_as_nan_are_no_finding(tmp_path: Path) -> None:
    run = imported(MSPROBE / "monitor_csv", tmp_path / "run")

    found = diagnose(run)

    assert "nan" in (MSPROBE / "monitor_csv" / "actv_grad_0-0.csv").read_text()
    assert (found.status, found.findings) == ("healthy", ())


def test_a_real_nan_in_the_monitor_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "Nov21_10-00-00-rank2-ab12"
    folder.mkdir(parents=True)
    head = "vpp_stage,name,step,min,max,mean,norm,nans,zeros,shape,dtype\n"
    good = '0,fc.weight,0,-1.0,1.0,0.0,2.0,0,0.0,"[2, 4]",torch.float32\n'
    bad = '0,fc.weight,1,nan,nan,nan,nan,3,0.0,"[2, 4]",torch.float32\n'
    (folder / "grad_reduced_0-1.csv").write_text(head + good + bad)

    run = imported(tmp_path / "m", tmp_path / "run")

    found = diagnose(run)
    assert run.ranks == [2]
    assert [r.summary.n_nan for r in rows(run, site="fc.weight")] == [0, 3]
    assert (found.findings[0].code, found.findings[0].step, found.findings[0].param) == ("HC101", 1, "fc.weight")


def test_differences_below_the_sixth_decimal_are_not_seen(tmp_path: Path) -> None:
    head = "vpp_stage,name,step,min,max,mean,norm,nans,zeros,shape,dtype\n"
    runs = []
    for name, norm in (("a", "0.000100"), ("b", "0.000101")):
        folder = tmp_path / name
        folder.mkdir()
        text = f'0,fc.weight,0,-0.000010,0.000010,0.0,{norm},0,0.0,"[64, 4]",torch.float32\n'
        (folder / "exp_avg_0-0.csv").write_text(head + text)
        runs.append(imported(folder, tmp_path / f"run-{name}"))

    assert compare_runs(*runs).n_differ == 0
    assert math.isclose(rows(runs[0])[0].summary.sumsq, 1e-8)
