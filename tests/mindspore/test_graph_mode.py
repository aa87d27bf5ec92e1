"""GRAPH mode, end to end: `hypocenter run` of a GPT that MindSpore compiles; each run is a process of its own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from started import started

from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.importing.left_over import read_left_over
from hypocenter.nouns import Finding
from hypocenter.record.layout import DUMP_FOLDER
from hypocenter.record.reader import RecordedRun, open_run

PROGRAM = Path(__file__).parent / "programs" / "graph_gpt.py"
LOSS = re.compile(r"loss (\S+)")


def recorded(
    folder: Path, *options: str, program: tuple[str, ...] = (), name: str = "run", is_cold: bool = False
) -> tuple[RecordedRun, str]:
    """The run, and all that was said."""
    out = folder / name
    words = ("-m", "hypocenter", "run", "--out", str(out), *options, str(PROGRAM), *program)
    done = started(*words, folder=folder, is_cold=is_cold)
    assert done.returncode in (0, 137), done.stderr[-2000:]
    assert not list(out.glob(f"rank-*/{DUMP_FOLDER}"))  # nothing is left of a dump
    return open_run(out), done.stdout + done.stderr


def losses(text: str) -> list[str]:
    return LOSS.findall("\n".join(line for line in text.splitlines() if line.startswith("loss ") and " s" in line))


def first_of(run: RecordedRun) -> Finding:
    found = diagnose(run)
    assert found.status == "findings"
    return found.findings[0]


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> tuple[RecordedRun, str]:
    return recorded(tmp_path_factory.mktemp("cell"), "--level", "modules", is_cold=True)


def test_a_recorded_program_computes_the_same_bits_and_healthy_masks_are_silent(
    cell: tuple[RecordedRun, str], tmp_path: Path
) -> None:
    run, said = cell

    alone = started(str(PROGRAM), folder=tmp_path)

    assert losses(said) == losses(alone.stdout)
    assert len(losses(said)) == 3
    assert [record.loss for _, record in run.step_records()] == [float(loss) for loss in losses(said)]
    assert diagnose(run).status == "healthy"
    assert "a step is dumped in" in said
    masked = list(run.readings(phase="forward", steps=[0]))
    cells = ("attention", "attention.qkv", "ff", "ff.wi", "ff.wo")
    assert {r.site for r in masked if r.port == "out[0]"} >= {
        "net", "net.head", "net.norm", "net.embed", "net.blocks.0", "net.blocks.1",
        *(f"net.blocks.{n}.{name}" for n in range(2) for name in cells),
    }  # fmt: skip


@pytest.mark.night
def test_the_same_program_in_pynative_mode_is_the_same_and_dumps_nothing(
    cell: tuple[RecordedRun, str], tmp_path: Path
) -> None:
    pynative, said = recorded(tmp_path, "--level", "modules", program=("--mode", "pynative"))

    found = compare_runs(pynative, cell[0])

    assert found.status == "same"
    assert "dump" not in said
    compared = {(spot.site, spot.port) for pair in found.matching.pairs for spot in pair.baseline}
    assert {("net.blocks.1", "out[0]"), ("net.head.weight", "grad"), ("net.head.weight", "exp_avg")} <= compared


@pytest.mark.night
@pytest.mark.parametrize(("style", "n"), [("function", 1), ("accumulate", 2), ("jit", 1)])
def test_every_style_of_training_gives_the_same_values(
    style: str, n: int, cell: tuple[RecordedRun, str], tmp_path: Path
) -> None:
    run, said = recorded(tmp_path, "--level", "modules", program=("--style", style, "--steps", "2"))

    assert losses(said) == losses(cell[1])[:2]
    assert {r.microbatch for r in run.readings(phase="forward")} == set(range(n))
    assert compare_runs(cell[0], run).n_differ == 0


@pytest.mark.night
def test_the_state_of_an_optimizer_that_is_written_out_in_operators_is_taken_before_its_update(tmp_path: Path) -> None:
    options = ("--level", "modules", "--param-schedule", "every=1")
    program = ("--style", "function", "--optimizer", "written-out", "--steps", "2", "--mode")
    pynative, _ = recorded(tmp_path, *options, program=(*program, "pynative"), name="pynative")
    graph, _ = recorded(tmp_path, *options, program=(*program, "graph"), name="graph")

    found = compare_runs(pynative, graph)

    assert found.n_differ == 0
    compared = {(spot.site, spot.port) for pair in found.matching.pairs for spot in pair.baseline}
    assert {("net.head.weight", "exp_avg"), ("net.head.weight", "exp_avg_sq"), ("net.head.weight", "value")} <= compared
    assert {r.step for r in graph.readings(site="net.head.weight") if r.port == "exp_avg"} == {0, 1}


def test_an_overflow_in_float16_is_located_to_cell_operator_and_line(tmp_path: Path) -> None:
    run, _ = recorded(tmp_path, "--level", "modules", program=("--fault", "wo", "--steps", "2"))

    first = first_of(run)

    assert (first.step, first.site, first.op, first.cause) == (0, "net.blocks.0.ff", "Mul", "format-overflow")
    assert (first.confidence, first.limit) == ("proven", 65504.0)
    assert first.actual is not None
    assert first.actual > 65504.0
    assert first.source is not None
    assert first.source.text == "h = h * h"
    assert first.source.file == str(PROGRAM)
    assert first.bundle is None  # there is no operator to replay


@pytest.mark.night
def test_a_bad_batch_is_named_and_an_evaluation_between_is_not_recorded(tmp_path: Path) -> None:
    program = ("--fault", "data", "--style", "function", "--evaluate", "--at", "1", "--steps", "2")
    run, _ = recorded(tmp_path, "--level", "modules", program=program)

    first = first_of(run)

    assert (first.step, first.cause, first.phase) == (1, "bad-input", "data")
    assert len({r.order for r in run.readings(phase="forward", steps=[0]) if r.site == "net.head"}) == 2  # in and out


@pytest.mark.night
def test_only_chosen_steps_and_cells_are_dumped_and_what_they_do_not_show_is_not_blamed(tmp_path: Path) -> None:
    options = ("--level", "modules", "--schedule", "every=2", "--sites", "*.attention,*.attention.*")
    run, said = recorded(tmp_path, *options, program=("--fault", "wo", "--steps", "3"), name="a run.d")

    dumped = [r for r in run.readings(phase="forward") if r.op]
    assert dumped
    assert any(".attention" in r.site for r in dumped)
    assert not [r for r in dumped if ".ff" in r.site or ".ln" in r.site or "embed" in r.site]
    assert {r.step for r in run.readings(phase="forward")} == {0, 2}
    assert int(re.findall(r"in (\d+) files", said)[0]) < 200
    assert diagnose(run).status == "cannot-tell"


@pytest.mark.night
def test_at_level_sentinel_nothing_is_dumped(tmp_path: Path) -> None:
    run, said = recorded(tmp_path, program=("--steps", "2"))

    assert "is dumped" not in said
    assert [str(record.loss) for _, record in run.step_records()] == losses(said)
    assert {r.phase for r in run.readings()} <= {"loss", "optimizer", "scaler", "param"}  # read when an update is over


@pytest.mark.night
def test_values_are_kept_at_level_tensors(tmp_path: Path) -> None:
    run, _ = recorded(tmp_path, "--level", "tensors", program=("--steps", "1"))

    assert list(run.directory.glob("rank-00000/tensors/step-000000/mb-0/net.head*.safetensors"))


@pytest.mark.night
def test_what_a_killed_program_had_dumped_is_read_and_diagnosed(tmp_path: Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    killed = tmp_path / "killed.py"
    killed.write_text(
        text.replace("        optimizer(gradients)\n", "        import os; os.kill(os.getpid(), 9)\n", 1),
        encoding="utf-8",
    )
    out = tmp_path / "run"
    words = ("--level", "modules", "--out", str(out), str(killed), "--fault", "wo", "--style", "function")

    done = started("-m", "hypocenter", "run", *words, folder=tmp_path)

    assert done.returncode == -9
    assert "step 0 of rank 0 was read from the dump" in done.stderr
    assert (first_of(open_run(out)).op, first_of(open_run(out)).cause) == ("Mul", "format-overflow")
    assert not list(out.glob(f"rank-*/{DUMP_FOLDER}"))
    assert read_left_over(out) == []
