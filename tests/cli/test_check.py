"""`hypocenter check` and the end of `hypocenter run`."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from recordings import record, run

from hypocenter.cli.commands import check
from hypocenter.nouns import Diagnosis, Finding, Severity, Status


def finding(severity: Severity) -> Finding:
    return Finding(
        code="HC101", kind="nonfinite", severity=severity, title=f"a planted {severity}", step=3, site="encoder.ff"
    )


def diagnosis(*severities: Severity, status: Status = "findings") -> Diagnosis:
    return Diagnosis(
        run="r", status=status, findings=tuple(map(finding, severities)), n_steps=4, n_ranks=1, n_sites=3, n_rows=24,
        why=("no step was completed",) if status == "cannot-tell" else (),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "fail_on", "code"),
    [
        (diagnosis(status="healthy"), "error", 0),
        (diagnosis("error"), "error", 1),
        (diagnosis("warning"), "error", 0),
        (diagnosis("warning"), "warning", 1),
        (diagnosis("note", status="healthy"), "error", 0),
        (diagnosis("note", status="healthy"), "note", 1),
        (diagnosis(status="cannot-tell"), "error", 5),
        (diagnosis("note", status="cannot-tell"), "error", 5),
        (diagnosis("warning", "error"), "error", 1),
        (replace(diagnosis("warning"), why=("the program was killed",)), "error", 5),
        (replace(diagnosis("warning"), why=("the program was killed",)), "warning", 1),
    ],
)
def test_exit_code(found: Diagnosis, fail_on: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "diagnose", lambda recording, **_: found)

    assert run("check", record(tmp_path / "r"), "--fail-on", fail_on).code == code


def test_without_a_run_the_newest_one_is_checked_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "runs" / "first")
    newest = record(tmp_path / "runs" / "second", fails=False)
    monkeypatch.chdir(tmp_path)

    said = run("check")

    assert said.err == "checking runs/second, the newest run\n"
    assert (newest / "diagnosis.json").exists()
    assert not (tmp_path / "runs" / "first" / "diagnosis.json").exists()


def test_without_any_run_it_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    said = run("check")

    assert (said.code, said.out) == (4, "")
    assert "error[no-recording]: no run is named, and there is none to take" in said.err


def test_screen_is_on_stdout_and_diagnosis_json_beside_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "diagnose", lambda recording, **_: diagnosis("error", "note"))

    said = run("check", record(tmp_path / "r"))

    assert said.out.startswith("error[HC101]: a planted error\n")
    assert "1 note hidden, show with --notes" in said.out
    assert said.out.splitlines()[-1] == f"report: hypocenter report {tmp_path / 'r'} -o report.html"
    assert said.err == ""
    stored = json.loads((tmp_path / "r" / "diagnosis.json").read_text())
    assert [f["severity"] for f in stored["findings"]] == ["error", "note"]


def test_json_is_the_stored_diagnosis_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "diagnose", lambda recording, **_: diagnosis("error"))

    said = run("check", record(tmp_path / "r"), "--json")

    assert said.out == (tmp_path / "r" / "diagnosis.json").read_text()
    assert json.loads(said.out)["schema"] == "hypocenter.diagnosis/1"


def test_other_formats_and_a_typo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "diagnose", lambda recording, **_: diagnosis("error"))
    path = record(tmp_path / "r")

    assert run("check", path, "--format", "markdown").out.startswith("# Hypocenter: r\n")
    wrong = run("check", path, "--format", "markdwon")
    assert wrong.code == 2
    assert "did you mean 'markdown'?" in wrong.err


def test_nothing_to_read_is_4(tmp_path: Path) -> None:
    said = run("check", tmp_path / "nowhere")

    assert said.code == 4
    assert said.err.startswith("error[no-recording]: ")
    assert said.out == ""


def test_finish_tells_curves_findings_cost_and_next_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "diagnose", lambda recording, **_: diagnosis("warning", "error"))
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()

    found = check.finish(record(Path("r"), n_steps=8), stream)

    lines = stream.getvalue().splitlines()
    assert found is not None
    assert check.worst(found) == "error"
    assert lines[1] == "loss       █▇▆▅▃▂▁✕  3 -> NaN"
    assert lines[2] == "grad norm  ▁▁▁▁▁▁▁✕  1 -> +inf"
    assert "error[HC101]: a planted error" in lines
    assert lines[-2].startswith("wrote ")
    assert lines[-2].endswith(", overhead 2.0 ms per step (2.0 %)")
    assert lines[-1] == "report: hypocenter report r -o report.html"


def test_finish_of_a_program_that_recorded_nothing_tells_so(tmp_path: Path) -> None:
    stream = io.StringIO()

    assert check.finish(tmp_path, stream) is None
    assert stream.getvalue().startswith("error[no-recording]: ")


def test_directory_that_cannot_be_written_is_only_a_warning(tmp_path: Path) -> None:
    stream = io.StringIO()

    check.store(tmp_path / "gone", diagnosis("error"), stream)

    assert stream.getvalue().startswith("warning[not-written]: ")
