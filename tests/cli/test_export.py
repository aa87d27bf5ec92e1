"""`hypocenter export` as a person uses it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from recordings import record, run


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record(tmp_path / "run")


def test_what_was_made_is_named_and_how_to_open_it(recorded: Path, tmp_path: Path) -> None:
    said = run("export", recorded, "--to", "perfetto", "-o", tmp_path / "new" / "run.pftrace")

    assert (said.code, said.out) == (0, f"{tmp_path / 'new' / 'run.pftrace'}\n")
    assert "note: modules have no times: they are drawn in their order, over their step" in said.err
    assert said.err.splitlines()[-1].startswith("next: open https://ui.perfetto.dev")


def test_nothing_is_overwritten_unless_it_is_asked_for(recorded: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")

    refused = run("export", recorded, "--to", "csv", "-o", out)
    assert refused.code != 0
    assert "the export exists already" in refused.err
    assert (out / "mine").read_text() == "mine"

    assert run("export", recorded, "--to", "csv", "-o", out, "--force").code == 0
    assert sorted(path.name for path in out.iterdir()) == ["findings.csv", "readings.csv", "steps.csv"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--to", "excel"], "nothing exports to 'excel'"),
        (["--to", "csv", "-o", "/proc/nowhere/out"], "the export cannot be written"),
    ],
)
def test_what_cannot_be_made_is_one_error(words: list[str], expected: str, recorded: Path, tmp_path: Path) -> None:
    said = run("export", recorded, *(words if "-o" in words else [*words, "-o", tmp_path / "out"]))

    assert said.code != 0
    assert expected in said.err
    assert "Traceback" not in said.err
    assert not (tmp_path / "out").exists()


def test_neither_torch_nor_a_tool_is_needed(recorded: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'mindspore', 'tensorboard', 'tensorflow', 'perfetto', 'google.protobuf'):\n"
        "    sys.modules[name] = None\n"
        "from hypocenter.cli import main\n"
        "for kind in ('parquet', 'csv', 'perfetto', 'chrome-trace', 'tensorboard'):\n"
        "    assert main(['export', sys.argv[1], '--to', kind, '-o', sys.argv[2] + kind]) == 0\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(recorded), str(tmp_path / "out-")], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("out-*"))) == 5
