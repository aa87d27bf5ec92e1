"""importing.kinds.mindspore_dump: dumps that MindSpore wrote itself, and what check and diff make of them."""

from __future__ import annotations

import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.importing.catalogue import IMPORTERS, head_of
from hypocenter.importing.mindspore_names import parse_file
from hypocenter.record.reader import RecordedRun
from hypocenter.summary.reducers.numpy import summarize

sys.path.insert(0, str(Path(__file__).parent))
from mindspore_trees import (
    OVERFLOWED,
    TRAINED,
    copied,
    file_of,
    folder_of,
    imported,
    reading_of,
    values_of,
)  # isort: skip # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return imported(TRAINED, tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture(scope="module")
def overflowed(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    return imported(OVERFLOWED, tmp_path_factory.mktemp("overflowed") / "run")


def compared(a: RecordedRun, b: RecordedRun) -> Comparison:
    return compare_runs(a, b)


@pytest.mark.parametrize("dump", [TRAINED, OVERFLOWED, TRAINED / "rank_0", TRAINED / "rank_0" / "Tiny" / "0" / "0"])
def test_the_kind_is_told_by_the_content(dump: Path) -> None:
    IMPORTERS.load()
    sure = {name: entry.accepts(head_of(dump)) for name, entry in IMPORTERS.entries().items()}

    assert max(sure, key=lambda name: sure[name]) == "mindspore-dump"


def test_values_are_those_of_the_files(trained: RecordedRun) -> None:
    """Every file of forward, but for weights and numbers that the program gave, is a reading of the same numbers."""
    looks = {(r.shape, r.summary.sum, r.summary.sumsq, r.summary.sketch) for r in trained.readings(rank=0)}
    n = 0

    for path in TRAINED.rglob("*.npy"):
        name = parse_file(path.name)
        assert name is not None
        if not name.name.startswith("Default_network") or name.slot > 0 or name.dtype != "float32":
            continue
        array = np.load(path, allow_pickle=False)
        summary = summarize(array, sketch=True)
        assert (array.shape, summary.sum, summary.sumsq, summary.sketch) in looks
        n += 1
    assert n == 16  # eight operators, input and output


def test_operators_stand_below_their_cells_with_lines_of_code(trained: RecordedRun) -> None:
    found = reading_of(trained, "forward", "fc1.BiasAdd", "out[0]")

    assert (found.module, found.op, found.dtype, found.shape) == ("BiasAdd", "Graph.BiasAdd", "float32", (3, 4))
    assert found.source is not None
    assert (Path(found.source.file).name, found.source.line) == ("run.py", 10)
    assert found.summary.sum == pytest.approx(
        float(values_of(TRAINED, "BiasAdd.Default_network-WithLossCell__backbone-Net_fc1", "output.0").sum())
    )


def test_a_cell_has_what_enters_and_leaves_it(trained: RecordedRun) -> None:
    for cell, first, last in (("fc1", "MatMul", "BiasAdd"), ("act", "ReLU", "ReLU"), ("", "fc1.MatMul", "fc2.BiasAdd")):
        ops = [f"{cell}.{op}".lstrip(".") for op in (first, last)]

        entered = reading_of(trained, "forward", cell, "in[0]")
        left = reading_of(trained, "forward", cell, "out[0]")

        assert entered.summary == reading_of(trained, "forward", ops[0], "in[0]").summary
        assert left.summary == reading_of(trained, "forward", ops[1], "out[0]").summary
        assert entered.order < left.order
    assert reading_of(trained, "forward", "fc1", "out[0]").module == "Dense"
    facts = trained.facts(0)
    assert facts is not None
    kinds = {module.path: module.kind for module in facts.modules}
    assert kinds == {"": "Net", "fc1": "Dense", "act": "ReLU", "fc2": "Dense", "_loss_fn": "MSELoss"}
    assert [o.kind for o in facts.optimizers] == ["SGD"]


def test_an_operator_of_backward_stands_where_its_forward_does(trained: RecordedRun) -> None:
    """The file of fc1's weight gradient has the scope of fc2: the graph says whose gradient it is."""
    file = file_of(
        TRAINED,
        "MatMul.Gradients_Default_network-WithLossCell__backbone-Net_fc2-Dense_Grad_MatMul_MatMul-op1",
        "output.0",
    )

    found = reading_of(trained, "backward", "fc1.MatMul", "grad_in[0]")

    assert found.summary.sum == pytest.approx(float(np.load(file).sum(dtype=np.float64)), rel=1e-6)


def test_gradients_and_parameters_have_the_programs_names(trained: RecordedRun) -> None:
    rate = 0.1

    for name in ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"):
        before = reading_of(trained, "param", name, "value").summary
        gradient = reading_of(trained, "grad", name, "grad").summary
        after = reading_of(trained, "param", name, "value", step=1).summary
        assert after.sum == pytest.approx(before.sum - rate * gradient.sum, abs=1e-6)
    assert {r.site for r in trained.readings(phase="optimizer", steps=[1])} == {
        "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias",
    }  # fmt: skip


def test_the_loss_is_what_the_graph_returns(trained: RecordedRun) -> None:
    loss = float(values_of(TRAINED, "ReduceMean.Default", "output.0"))
    (record, last) = [record for _, record in trained.step_records()]

    assert record.loss == pytest.approx(loss)
    assert record.lr == pytest.approx(0.1)
    assert (last.step, last.loss) == (1, None)
    assert reading_of(trained, "loss", "loss", "value").summary.sum == pytest.approx(loss)
    assert any("step 1 holds only parameters" in note for note in trained.run.imported.notes)  # type: ignore[union-attr]


def test_the_real_overflow_is_found_and_explained(overflowed: RecordedRun) -> None:
    diagnosis = diagnose(overflowed)

    assert diagnosis.status == "findings"
    (found,) = diagnosis.findings
    assert (found.code, found.site, found.cause, found.severity) == ("HC104", "Mul", "format-overflow", "error")
    assert found.chips == ("+inf ×104",)
    assert found.source is not None
    assert found.source.line == 5
    assert (found.limit, found.actual) == (65504.0, pytest.approx(3208.0**2))


def test_what_a_cpu_labels_wrongly_is_bounded_not_believed(overflowed: RecordedRun) -> None:
    """MatMul and BiasAdd are dumped as the first half of a float32 buffer: as float16 they show NaN."""
    as_float16 = values_of(OVERFLOWED, "MatMul.Default_wi-Dense", "output.0")
    in_float32 = as_float16.reshape(-1).view(np.float32)

    found = reading_of(overflowed, "forward", "wi.MatMul", "out[0]")

    assert np.isnan(as_float16.astype(np.float32)).sum() > 0
    assert found.summary.n_nonfinite == 0
    assert set(found.lacks.split()) == {"counts", "histogram", "extremes", "sum", "sumsq"}
    assert found.summary.absmax == pytest.approx(float(np.abs(in_float32).max()))
    assert (found.dtype, found.shape) == ("float32", (4, 64))
    for site, port in (("wi.BiasAdd", "in[0]"), ("wi.BiasAdd", "out[0]"), ("act.Cast", "in[0]"), ("wi", "out[0]")):
        assert "counts" in reading_of(overflowed, "forward", site, port).lacks
    for site, port in (("act.Cast", "out[0]"), ("act.ReLU", "out[0]"), ("Mul", "out[0]")):
        assert not reading_of(overflowed, "forward", site, port).lacks


def test_without_the_graph_the_same_operator_is_named(tmp_path: Path) -> None:
    dump = copied(OVERFLOWED, tmp_path / "dump")
    shutil.rmtree(dump / "rank_0" / "graphs")

    run = imported(dump, tmp_path / "run")

    made = [r for r in run.readings(phase="forward") if r.port.startswith("out") and r.summary.n_nonfinite]
    assert min(made, key=lambda r: r.order).site == "Mul"
    for site, port in (
        ("wi.MatMul", "out[0]"),
        ("wi.BiasAdd", "in[0]"),
        ("wi.BiasAdd", "out[0]"),
        ("wo.BiasAdd", "out[0]"),
    ):
        found = reading_of(run, "forward", site, port)
        assert (found.summary.n_nonfinite, "counts" in found.lacks) == (0, True)
    assert {f.site for f in diagnose(run).findings} == {"Mul"}
    assert {r.site for r in run.readings(phase="param")} == {"wi.weight", "wi.bias", "wo.weight", "wo.bias"}
    assert any("no graph" in note for note in run.run.imported.notes)  # type: ignore[union-attr]


def test_two_imports_of_a_dump_are_the_same(trained: RecordedRun, overflowed: RecordedRun, tmp_path: Path) -> None:
    for dump, run in ((TRAINED, trained), (OVERFLOWED, overflowed)):
        other = imported(dump, tmp_path / dump.name)

        assert compared(run, other).status == "same"


@pytest.mark.parametrize(
    ("start", "end", "site"),
    [
        ("BiasAdd.Default_network-WithLossCell__backbone-Net_fc1", "output.0", "fc1.BiasAdd"),
        ("ReLU.Default", "output.0", "act.ReLU"),
        ("MatMul.Default_network-WithLossCell__backbone-Net_fc2", "output.0", "fc2.MatMul"),
        ("Mul.Gradients", "output.0", "_loss_fn.Square"),
    ],
)
def test_a_changed_value_is_found_at_its_operator(
    trained: RecordedRun, tmp_path: Path, start: str, end: str, site: str
) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    file = file_of(dump, start, end)
    array = np.load(file)
    array.reshape(-1)[np.abs(array).argmax()] *= 1.01
    np.save(file, array)

    found = compared(trained, imported(dump, tmp_path / "run"))

    assert found.status == "diverged"
    assert found.first is not None
    assert found.first.site == site
    assert found.first.step == 0


def test_ranks_and_iterations_are_ranks_and_steps(tmp_path: Path) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    first = folder_of(dump)
    shutil.copytree(first, first.parent / "1")
    shutil.copytree(dump / "rank_0", dump / "rank_3")
    (dump / "rank_3" / "Tiny" / "0" / "0").rename(dump / "rank_3" / "Tiny" / "0" / "7")

    run = imported(dump, tmp_path / "run")

    assert run.run.world_size == 4
    records = sorted({(rank, record.step) for rank, record in run.step_records()})
    assert records == [(0, 0), (0, 1), (0, 2), (3, 1), (3, 2), (3, 7), (3, 8)]
    values = {r.summary.sum for r in run.readings(rank=0, steps=[1], phase="param") if r.site == "fc1.weight"}
    assert len(values) == 1  # what the step itself shows wins over what the update before it left


def test_a_nan_in_training_is_an_error_where_it_began(tmp_path: Path) -> None:
    """The square of an infinite difference: what follows in the dump is made to follow."""
    dump = copied(TRAINED, tmp_path / "dump")
    for path in dump.rglob("*.npy"):
        name = parse_file(path.name)
        is_of_loss = name is not None and ("_loss_fn" in name.name and not name.name.startswith("Gradients"))
        if name is not None and is_of_loss and name.dtype == "float32" and not path.name.startswith("Sub."):
            is_given = name.op_type == "Square" and name.io == "input"
            array = np.load(path)
            if not is_given:
                array.reshape(-1)[0] = math.inf
            np.save(path, array)

    diagnosis = diagnose(imported(dump, tmp_path / "run"))

    found = next(f for f in diagnosis.findings if f.code == "HC104")
    assert (found.site, found.severity) == ("_loss_fn.Square", "error")


def test_constants_are_no_findings(tmp_path: Path) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    constants = dump / "rank_0" / "Tiny" / "0" / "constants"
    constants.mkdir()
    mask = np.triu(np.full((4, 4), -np.inf, np.float32), 1)
    np.save(constants / "Parameter.data-12.0.0.1795227767604739.output.0.DefaultFormat.Float32.npy", mask)

    run = imported(dump, tmp_path / "run")

    found = reading_of(run, "data", "constants.0.data-12", "value")
    assert (found.summary.n_neginf, found.literal_inf) == (6, True)
    assert diagnose(run).status == "healthy"
