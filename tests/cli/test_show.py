"""`hypocenter show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from recordings import record, run

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("runs") / "r")


def test_sites_are_listed_in_execution_order_with_their_extremes(recording: Path) -> None:
    said = run("show", recording)

    lines = said.out.splitlines()
    assert said.code == 0
    assert lines[0].split() == [
        "phase",
        "site",
        "port",
        "dtype",
        "steps",
        "|max|",
        "headroom",
        "values",
        "that",
        "stand",
        "out",
    ]
    assert [line.split()[1] for line in lines[1::2]] == ["encoder.norm", "encoder.ff.wi", "encoder.ff"]
    assert lines[4].split()[:7] == ["forward", "encoder.ff.wi", "out[0]", "float16", "4", "160", "8.7"]
    assert lines[6].endswith("none  +inf ×5, 0 ×9")
    assert said.err == f"next: hypocenter show {recording} --site encoder.ff --values\n"


def test_site_glob_and_step_select_and_a_typo_names_the_nearest(recording: Path) -> None:
    values = run("show", recording, "--site", "*.wi", "--step", 2, "--values").out.splitlines()
    wrong = run("show", recording, "--site", "encoder.fx")
    late = run("show", recording, "--step", 99)

    assert len(values) == 3
    assert values[1].split()[:6] == ["2", "0", "0", "encoder.ff.wi", "in[0]", "float16"]
    assert wrong.code == 2
    assert "did you mean 'encoder.ff'?" in wrong.err
    assert "the recording has steps 0 to 3" in late.err


def test_rows_that_are_cut_are_counted(recording: Path) -> None:
    said = run("show", recording, "--values", "--rows", 5)

    assert len(said.out.splitlines()) == 7
    assert said.out.splitlines()[-1] == "19 rows not shown, see them with --rows 0 or --json"
    assert len(run("show", recording, "--values", "--rows", 0).out.splitlines()) == 25


def test_last_frames_end_with_the_first_bad_one(recording: Path) -> None:
    said = run("show", recording, "--frames", 2)

    assert said.out.splitlines() == [
        "step 3, micro-batch 0, rank 0: last 2 of 3 module frames, up to the first value that is not finite",
        " abs min   abs max  what    dtype    shape  values that stand out",
        "",
        "encoder.ff.wi  Linear",
        "0.00e+00  1.60e+02  in[0]   float16  2×8    0 ×3",
        "0.00e+00  1.60e+02  out[0]  float16  2×8    0 ×3",
        "",
        "encoder.ff  FeedForward  <-- first bad",
        "0.00e+00  9.00e+03  in[0]   float16  2×8    0 ×3",
        "5.00e-01  6.00e+04  out[0]  float16  2×8    +inf ×5",
    ]


def test_frames_of_a_healthy_run_are_the_last_step_and_say_so(tmp_path: Path) -> None:
    said = run("show", record(tmp_path / "r", fails=False), "--frames", 1)

    assert said.out.startswith(
        "step 3, micro-batch 0, rank 0: last 1 of 3 module frames, of the step; all values are finite\n"
    )
    assert "encoder.ff  FeedForward\n" in said.out


@pytest.mark.parametrize(
    ("option", "key", "n"), [((), "sites", 6), (("--values",), "values", 24), (("--frames", 9), "frames", 3)]
)
def test_json_has_an_envelope_and_everything(recording: Path, option: tuple[object, ...], key: str, n: int) -> None:
    answer = json.loads(run("show", recording, "--json", *option).out)

    assert answer["schema"] == f"hypocenter.show-{key}/1"
    found = answer[key]["frames"] if key == "frames" else answer[key]
    assert len(found) == n


def test_sql(recording: Path) -> None:
    text = run("show", recording, "--sql", "select step, max(absmax) as top from readings group by step order by step")
    data = run("show", recording, "--json", "--sql", "select count(*) as n from readings where n_posinf > 0")

    assert [line.split() for line in text.out.splitlines()] == [
        ["step", "top"], ["0", "9000"], ["1", "9000"], ["2", "9000"], ["3", "60000"],
    ]  # fmt: skip
    assert json.loads(data.out)["sql"] == [{"n": 1}]


def test_two_views_at_once_are_refused(recording: Path) -> None:
    said = run("show", recording, "--values", "--frames", 3)

    assert said.code == 2
    assert "exclude each other" in said.err


def scaled(path: Path) -> Path:
    """Three steps under a loss scaler, the first skipped."""
    start_run(path, ["python", "train.py"], {}, 1, {})
    writer = Writer(path, rank=0, warn=print)
    for step, (scale, n_bad) in enumerate(((1024.0, 3), (512.0, 0), (512.0, 0))):
        common = {"step": step, "microbatch": 0, "phase": "scaler", "order": 0, "dtype": "float32"}
        rows = [
            Reading(site="loss_scale", port="value", module="GradScaler", summary=Summary(n=1, sum=scale), **common),
            Reading(
                site="loss_scale.found_inf.cpu", port="value", summary=Summary(n=1, sum=float(n_bad > 0)), **common
            ),
            Reading(site="wo", port="scaled_grad", summary=Summary(n=16, n_posinf=n_bad, absmax=6e4), **common),
        ]
        writer.write(rows, StepRecord(step=step, loss_scale=scale, skipped=n_bad > 0))
    writer.close()
    finish_run(path, "finished", 0)
    return path


def test_diary(tmp_path: Path) -> None:
    path = scaled(tmp_path / "r")

    lines = run("show", path, "--diary", "--site", "wo").out.splitlines()
    data = json.loads(run("show", path, "--diary", "--json").out)

    assert [line.split()[0] for line in lines] == ["steps", "0", "1"]
    assert "skipped  wo (19 % not finite, largest finite 60000)" in lines[1]
    assert lines[2].startswith("1 to 2  512")
    assert data["schema"] == "hypocenter.show-diary/1"
    assert [line["n_skipped"] for line in data["diary"]] == [1, 0]


def test_diary_of_a_run_without_a_scaler_says_so(recording: Path) -> None:
    said = run("show", recording, "--diary")

    assert said.code == 2
    assert "no loss scaler stepped here" in said.err
