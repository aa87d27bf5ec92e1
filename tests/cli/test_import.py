"""`hypocenter import` as a person uses it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from recordings import run

sys.path.insert(0, str(Path(__file__).parents[1] / "importing"))
from dumps import forward, tensor, write  # isort: skip

SAMPLES = Path(__file__).parent.parent / "importing" / "samples"


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("msprobe", "msprobe/two_ranks_mix"),
        ("msprobe", "msprobe/two_ranks_mix/step1/rank1/dump.json"),
        ("msprobe-monitor", "msprobe/monitor_csv"),
        ("msprobe-monitor", "msprobe/monitor_csv/actv_0-0.csv"),
        ("ptdbg", "ptdbg_ascend/v3.0_underscore_all"),
    ],
)
def test_the_kind_is_told_by_the_content_or_named(kind: str, path: str, tmp_path: Path) -> None:
    guessed = run("import", SAMPLES / path, "-o", tmp_path / "a")
    named = run("import", kind, SAMPLES / path, "-o", tmp_path / "b")

    assert (guessed.code, named.code) == (0, 0)
    assert guessed.out == f"{tmp_path / 'a'}\n"
    assert guessed.err.startswith(f"{kind}")
    assert guessed.err.endswith(f"next: hypocenter check {tmp_path / 'a'}\n")
    assert json.loads((tmp_path / "b" / "run.json").read_text())["imported"]["kind"] == kind


def test_commands_work_on_what_was_imported(tmp_path: Path) -> None:
    run("import", SAMPLES / "msprobe" / "two_ranks_mix", "-o", tmp_path / "run")

    assert run("check", tmp_path / "run").code == 1
    assert run("show", tmp_path / "run").code == 0
    assert run("headroom", tmp_path / "run").code == 1  # in float16 it would overflow
    assert run("report", tmp_path / "run", "-o", tmp_path / "r.html").code == 0
    assert run("diff", tmp_path / "run", tmp_path / "run").code == 0
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_what_the_format_does_not_hold_is_said(tmp_path: Path) -> None:
    said = run("import", SAMPLES / "msprobe" / "fp16_norm_infinity_L0", "-o", tmp_path / "run")

    assert "note: counts of NaN and infinities are lower bounds" in said.err
    assert "note: level L0: no APIs" in said.err
    assert run("check", tmp_path / "run").code == 0


@pytest.mark.parametrize(
    ("name", "output", "code", "verdict"),
    [
        ("Module.fc2.Linear.forward.0", (math.inf, -1.0), 5, "cannot tell: Linear made +inf (step 0, fc2)"),
        ("Module.fc2.Linear.forward.0", (math.nan, math.nan), 5, "cannot tell: Linear made NaN (step 0, fc2)"),
        ("Torch.exp.0.forward", (math.inf, 0.0), 5, "cannot tell: Torch.exp made +inf (step 0)"),
        ("Module.mask.Mask.forward.0", (1.0, -math.inf), 0, "healthy"),  # how masks are written
        ("Module.fc2.Linear.forward.0", (1.0, -1.0), 0, "healthy"),
    ],
)
def test_a_dump_without_a_loss_is_not_called_healthy_where_it_is_not_finite(
    name: str, output: tuple[float, float], code: int, verdict: str, tmp_path: Path
) -> None:
    dump = write(tmp_path / "dump", {name: forward([tensor(1, -1)], [tensor(*output)])})
    run("import", dump, "-o", tmp_path / "run")

    said = run("check", tmp_path / "run")

    assert said.code == code
    assert said.out.startswith(verdict)


def test_a_run_is_not_overwritten_without_force(tmp_path: Path) -> None:
    words = ("import", SAMPLES / "msprobe" / "debug_tensor", "-o", tmp_path / "run")
    assert run(*words).code == 0

    assert run(*words).code == 2
    assert run(*words, "--force").code == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("nothing-here",), 4, "there is no dump to import"),
        (("floppy", "nothing-here"), 4, "there is no dump to import"),
        (("floppy", str(SAMPLES / "msprobe")), 2, "no kind of dump is called 'floppy'"),
        (("a", "b", "c"), 2, "give KIND and PATH"),
    ],
)
def test_mistakes_are_one_error(words: tuple[str, ...], code: int, text: str, tmp_path: Path) -> None:
    said = run("import", *words, "-o", tmp_path / "run")

    assert said.code == code
    assert text in said.err
    assert not (tmp_path / "run").exists()


def test_our_own_recordings_need_no_import(tmp_path: Path) -> None:
    run("import", SAMPLES / "msprobe" / "debug_tensor", "-o", tmp_path / "run")

    said = run("import", tmp_path / "run", "-o", tmp_path / "again")

    assert said.code == 4
    assert "a recording of ours already" in said.err
