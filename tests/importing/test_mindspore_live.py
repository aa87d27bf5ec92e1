"""importing.mindspore_live: dumps as they are while a program runs; importing.left_over: of one that was killed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from hypocenter.config import Config
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.importing.left_over import OWNER, note_owner, read_left_over
from hypocenter.importing.mindspore_live import CALLS, LiveDump, LiveRows, batches_of, note_call, noted_calls
from hypocenter.importing.mindspore_tree import Folder
from hypocenter.record.layout import DUMP_FOLDER, rank_directory
from hypocenter.record.reader import open_run

sys.path.insert(0, str(Path(__file__).parent))
from mindspore_trees import OVERFLOWED, TRAINED, copied  # isort: skip


def live(dump: Path, run: Path, **options: object) -> tuple[LiveDump, LiveRows]:
    """A copy of a dump of one call as if a program were writing it, and had made two."""
    folder = copied(dump, rank_directory(run, 0) / DUMP_FOLDER)
    first = next(path for path in folder.glob("rank_0/*/0/0"))
    shutil.copytree(first, first.with_name("1"))  # the same values again
    rows = LiveRows(Config(**{"level": "modules", **options}), run, 0)  # type: ignore[arg-type]
    return LiveDump(folder, 0, rows, sketch=False), rows


def test_a_step_is_read_by_its_calls_and_deleted_after_the_next(tmp_path: Path) -> None:
    dump, rows = live(TRAINED, tmp_path)

    assert not dump.read(7, [99])
    assert dump.read(0, [0])
    first = [path for path in dump.folder.rglob("*.npy") if "constants" not in path.parts]
    assert dump.read(1, [1])

    assert rows.record is not None
    assert (rows.record.step, rows.record.n_microbatches) == (1, 1)
    assert not any(path.exists() for path in first if path.parent.name == "0")
    assert dump.n_files > 0
    assert dump.n_bytes > 0
    dump.end()
    assert not dump.folder.exists()


def test_at_level_modules_operators_are_left_out_of_healthy_steps_and_gradients_are_norms(tmp_path: Path) -> None:
    dump, rows = live(TRAINED, tmp_path, param_schedule="never")
    dump.read(0, [0])

    assert rows.rows
    assert not [r for r in rows.rows if r.op or r.phase in ("param", "optimizer")]
    gradients = [r for r in rows.rows if r.phase == "grad"]
    assert gradients
    assert all(r.summary.min is None and r.summary.sumsq > 0 for r in gradients)
    assert all(r.digest is None for r in rows.rows)
    assert dump.evidence is None


def test_at_level_ops_and_for_chosen_sites(tmp_path: Path) -> None:
    dump, rows = live(TRAINED, tmp_path, level="ops", sites=("fc1",))
    dump.read(0, [0])

    assert {r.site.partition(".")[0] for r in rows.rows} <= {"fc1", "loss"}
    assert [r for r in rows.rows if r.op.startswith("Graph.")]


def test_calls_are_noted_by_step_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    for number, step in ((1, 0), (2, 0), (3, 5)):
        note_call(tmp_path, number, step)
    with (tmp_path / CALLS).open("a", encoding="ascii") as file:
        file.write("4")

    assert noted_calls(tmp_path) == {0: [1, 2], 5: [3]}
    assert noted_calls(tmp_path / "none") == {}


def test_a_graph_that_runs_again_begins_the_next_microbatch(tmp_path: Path) -> None:
    def folder(step: int, graph: int) -> Folder:
        return Folder(path=tmp_path, rank=0, step=step, graph=graph, root=None)

    found = batches_of([folder(3, 1), folder(1, 0), folder(2, 0)])

    assert [[(f.step, f.graph) for f in batch] for batch in found] == [[(1, 0)], [(2, 0), (3, 1)]]


def test_a_failed_step_without_a_loss_is_told_by_its_rows(tmp_path: Path) -> None:
    dump, rows = live(OVERFLOWED, tmp_path)

    dump.read(0, [0])

    assert [r for r in rows.rows if r.op == "Graph.Mul" and r.summary.n_posinf]  # a result is not finite: all is kept


def test_what_is_left_is_read_once_the_program_has_ended(tmp_path: Path) -> None:
    dump, _ = live(TRAINED, tmp_path)
    note_call(dump.folder, 0, 0)
    note_call(dump.folder, 1, 1)
    note_owner(dump.folder)

    assert read_left_over(tmp_path) == []  # it is this process's own, and goes on
    (dump.folder / OWNER).write_text("elsewhere 1 1 1\n", encoding="ascii")
    said = read_left_over(tmp_path)

    assert said == ["steps 0 to 1 of rank 0 were read from the dump of a graph that was under way"]
    run = open_run(tmp_path)
    assert {record.step for _, record in run.step_records()} == {0, 1}
    found = diagnose(run)
    assert (found.status, found.findings) == ("cannot-tell", ()), "nobody knows how the program ended"
    assert not dump.folder.exists()
    assert read_left_over(tmp_path) == []


def test_a_damaged_dump_is_said_and_never_raised(tmp_path: Path) -> None:
    dump, _ = live(TRAINED, tmp_path)
    note_call(dump.folder, 0, 0)
    for path in list(dump.folder.rglob("*.npy"))[::3]:
        path.write_bytes(path.read_bytes()[:50])

    said = read_left_over(tmp_path)

    assert said == ["step 0 of rank 0 was read from the dump of a graph that was under way"]


@pytest.mark.parametrize("text", ["", "a b c d", "x 1 notanumber 3"])
def test_an_owner_that_cannot_be_read_has_ended(text: str, tmp_path: Path) -> None:
    dump, _ = live(TRAINED, tmp_path)
    note_call(dump.folder, 0, 0)
    (dump.folder / OWNER).write_text(text, encoding="ascii")

    assert len(read_left_over(tmp_path)) == 1
    shutil.rmtree(tmp_path)
