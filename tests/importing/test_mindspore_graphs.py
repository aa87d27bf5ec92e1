"""importing.mindspore_flow: which operator a file is of, by order, tested by the values that flow."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.importing.mindspore_flow import Flow
from hypocenter.importing.mindspore_graph import read_graph

sys.path.insert(0, str(Path(__file__).parent))
from mindspore_trees import TRAINED, copied, imported, reading_of  # isort: skip


def line(number: int, op: str, operands: str, full_name: str, more: str = "") -> str:
    return (
        f"  %{number}(CNode_{number}) = PrimFunc_{op}({operands}) cnode_attrs: {{}}{more}\n"
        "      : (<Tensor[Float32], (3)>) -> (<Tensor[Float32], (3)>)\n"
        "      : (<Float32xDefaultFormat[const vector]{3}>) -> (<Float32xDefaultFormat[const vector]{3}>)\n"
        f"      # Fullname with scope: ({full_name})\n"
        f"      # In file /home/me/train.py:{10 + number}, 4~70/        y = step_{number}(x)/\n"
    )


def graph(*lines: str, returns: int = 0) -> str:
    head = "%para1_x: <Tensor[Float32], (3)> : [3]  :  <Float32xDefaultFormat{3}>  :  IsWeight: false\n"
    return f"{head}\nsubgraph @kernel_graph0() {{\n{''.join(lines)}  Return(%{returns})\n}}\n"


def dumped(root: Path, text: str, files: dict[str, list[tuple[int, str, np.ndarray]]], number: int = 0) -> Path:
    """A dump of one graph: operator -> (time, input.0 or output.0, values)."""
    (root / "rank_0" / "graphs").mkdir(parents=True, exist_ok=True)
    (root / "rank_0" / "graphs" / f"ms_output_trace_code_graph_{number}.ir").write_text(text)
    folder = root / "rank_0" / "Net" / str(number) / "0"
    folder.mkdir(parents=True)
    for name, tensors in files.items():
        for time, slot, array in tensors:
            np.save(folder / f"{name}.0.0.{time}.{slot}.DefaultFormat.Float32.npy", array)
    return root


X = np.array([1, 2, 4], np.float32)
CHAIN = graph(  # the graph has op1 first: its numbers are of another time than those of the files
    line(0, "Neg", "%para1_x", "Default/Neg-op1"), line(1, "Neg", "%2", "Default/Neg-op0"),
    line(2, "Exp", "%0", "Default/Exp-op0"), returns=1,
)  # fmt: skip


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)], ids=["as the graph counts", "as values flow"])
def test_files_are_of_the_operators_between_which_their_values_flow(tmp_path: Path, numbers: tuple[int, int]) -> None:
    exp = np.exp(-X)
    files = {
        f"Neg.Default_Neg-op{numbers[0]}": [(1, "input.0", X), (2, "output.0", -X)],
        "Exp.Default_Exp-op0": [(3, "input.0", -X), (4, "output.0", exp)],
        f"Neg.Default_Neg-op{numbers[1]}": [(5, "input.0", exp), (6, "output.0", -exp)],
    }

    run = imported(dumped(tmp_path / "dump", CHAIN, files), tmp_path / "run")

    first, second = (reading_of(run, "forward", "Neg", "out[0]", call=call) for call in (0, 1))
    assert (first.source.line, second.source.line) == (10, 11)  # type: ignore[union-attr]
    assert (first.summary.sum, second.summary.max) == (-7.0, float((-exp).max()))


def test_where_neither_fits_no_line_is_named(tmp_path: Path) -> None:
    files = {
        "Neg.Default_Neg-op0": [(1, "input.0", 3 * X), (2, "output.0", 5 * X)],
        "Exp.Default_Exp-op0": [(3, "input.0", 7 * X), (4, "output.0", 9 * X)],
        "Neg.Default_Neg-op1": [(5, "input.0", 11 * X), (6, "output.0", 13 * X)],
    }

    run = imported(dumped(tmp_path / "dump", CHAIN, files), tmp_path / "run")

    assert [reading_of(run, "forward", "Neg", "out[0]", call=call).source for call in (0, 1)] == [None, None]
    assert any("values do not flow as it says" in note for note in run.run.imported.notes)  # type: ignore[union-attr]


def test_a_loop_is_calls_in_the_order_of_time(tmp_path: Path) -> None:
    text = graph(line(0, "Neg", "%para1_x", "Default/fc-Dense/Neg-op0"))
    runs = [(i + k, slot, (i + 1) * X) for i in (0, 10, 20) for k, slot in enumerate(("input.0", "output.0"))]

    run = imported(dumped(tmp_path / "dump", text, {"Neg.Default_fc-Dense_Neg-op0": runs}), tmp_path / "run")

    maxima = [reading_of(run, "forward", "fc.Neg", "out[0]", call=call).summary.max for call in (0, 1, 2)]
    assert maxima == [4.0, 44.0, 84.0]
    assert not [r for r in run.readings() if r.site == "fc"]  # which call is the cell's cannot be told


def test_an_overflow_is_followed_through_what_a_cpu_dumps_wrongly(tmp_path: Path) -> None:
    """Cast overflows; what Neg gives is the first half of a buffer, in which nothing is wrong; Cast gives NaN."""
    n, half = 8, np.zeros(8, np.float16)
    half[:] = np.arange(4, dtype=np.float32).view(np.float16)
    big = np.array([1e6, *range(7)], np.float32)

    def typed(number: int, op: str, operand: str, full_name: str, *forms: str) -> str:
        seen, held = ([f"Float{bits}" for bits in pair.split()] for pair in forms)
        return (
            f"  %{number}(C) = PrimFunc_{op}({operand}) cnode_attrs: {{}}\n"
            f"      : (<Tensor[{seen[0]}], ({n})>) -> (<Tensor[{seen[1]}], ({n})>)\n"
            f"      : (<{held[0]}xDefaultFormat{{{n}}}>) -> (<{held[1]}xDefaultFormat{{{n}}}>)\n"
            f"      # Fullname with scope: ({full_name})\n"
        )

    text = graph(
        typed(0, "Cast", "%para1_x", "Default/fc-Dense/Cast-op0", "32 16", "32 16"),
        typed(1, "Neg", "%0", "Default/fc-Dense/Neg-op0", "16 16", "16 32"),
        typed(2, "Cast", "%1", "Default/Cast-op0", "16 16", "32 16"), returns=2,
    )  # fmt: skip
    root = dumped(tmp_path / "dump", text, {"Cast.Default_fc-Dense_Cast-op0": [(1, "input.0", big)]})
    for name, time, slot, array in (
        ("Cast.Default_fc-Dense_Cast-op0", 2, "output.0", np.array([np.inf, *range(7)], np.float16)),
        ("Neg.Default_fc-Dense_Neg-op0", 3, "input.0", np.array([np.inf, *range(7)], np.float16)),
        ("Neg.Default_fc-Dense_Neg-op0", 4, "output.0", half),
        ("Cast.Default_Cast-op0", 5, "input.0", half),
        ("Cast.Default_Cast-op0", 6, "output.0", np.array([*range(7), np.nan], np.float16)),
    ):
        np.save(root / "rank_0/Net/0/0" / f"{name}.0.0.{time}.{slot}.DefaultFormat.Float16.npy", array)

    (found,) = diagnose(imported(root, tmp_path / "run")).findings

    assert (found.site, found.cause, found.actual) == ("fc.Cast", "format-overflow", pytest.approx(1e6))


def test_a_bad_weight_is_to_blame_itself(tmp_path: Path) -> None:
    weight = "%para2_fc.weight: <Ref[Tensor[Float32]], (3), ref_key=fc.weight, is_parameter>  :  IsWeight: true\n"
    text = weight + graph(line(0, "Mul", "%para1_x, %para2_fc.weight", "Default/fc-Dense/Mul-op0"))
    bad = np.array([1, np.nan, 3], np.float32)
    files = {"Mul.Default_fc-Dense_Mul-op0": [(1, "input.0", X), (2, "input.1", bad), (3, "output.0", X * bad)]}

    run = imported(dumped(tmp_path / "dump", text, files), tmp_path / "run")

    assert reading_of(run, "param", "fc.weight", "value").summary.n_nan == 1
    found = next(f for f in diagnose(run).findings if f.severity == "error" and f.code == "HC104")
    assert (found.param, found.cause) == ("fc.weight", "bad-parameter")


def test_an_update_is_told_by_its_operator_where_no_cell_is_around_it(tmp_path: Path) -> None:
    """Of a function that is compiled; the state that the optimizer keeps is no parameter of the network."""
    weights = "".join(
        f"%para{i}_{name}: <Ref[Tensor[Float32]], (3), ref_key={name}, is_parameter>  :  IsWeight: true\n"
        for i, name in ((2, "fc.weight"), (3, "moments.fc.weight"), (4, "learning_rate"))
    )
    operands = "%para2_fc.weight, %para3_moments.fc.weight, %para4_learning_rate, %0, F32(0.9)"
    text = weights + graph(
        line(0, "Mul", "%para1_x, %para2_fc.weight", "Gradients/Default/fc-Dense/Grad_Mul/Mul-op0"),
        line(1, "ApplyMomentum", operands, "Default/ApplyMomentum-op0"),
    )  # fmt: skip
    rate = np.float32(0.5)
    files = {
        "Mul.Gradients_Default_fc-Dense_Grad_Mul_Mul-op0": [
            (1, "input.0", X), (2, "input.1", X), (3, "output.0", X * X),
        ],
        "ApplyMomentum.Default_ApplyMomentum-op0": [
            (4, "input.0", -X), (5, "input.1", X * X), (6, "input.2", rate), (7, "input.3", X * X),
        ],
        "Parameter.fc_weight": [(8, "output.0", -X)],
        "Parameter.moments_fc_weight": [(9, "output.0", X * X)],
    }  # fmt: skip

    run = imported(dumped(tmp_path / "dump", text, files), tmp_path / "run")

    assert reading_of(run, "grad", "fc.weight", "grad").summary.sum == float((X * X).sum())
    assert reading_of(run, "param", "fc.weight", "value", step=1).summary.sum == -7.0
    assert reading_of(run, "optimizer", "fc.weight", "momentum_buffer", step=1).summary.max == 16.0
    assert {r.site for r in run.readings(phase="param")} == {"fc.weight"}
    assert [record.lr for _, record in run.step_records()] == [0.5, None]


def test_a_graph_of_evaluation_is_left_out_beside_the_one_that_trains(tmp_path: Path) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    text = graph(line(0, "ReLU", "%para1_x", "Default/act-ReLU/ReLU-op0"))
    files = {"ReLU.Default_act-ReLU_ReLU-op0": [(1, "input.0", X), (2, "output.0", X)]}
    dumped(dump, text, files, number=1)

    run = imported(dump, tmp_path / "run")
    alone = imported(dump / "rank_0" / "Net" / "1", tmp_path / "alone")

    assert reading_of(run, "forward", "act.ReLU", "out[0]").shape == (3, 4)
    assert any("graph 1 only evaluates" in note for note in run.run.imported.notes)  # type: ignore[union-attr]
    assert reading_of(alone, "forward", "act.ReLU", "out[0]").summary.max == 4.0
    assert reading_of(alone, "forward", "", "out[0]").summary.max == 4.0  # what it returns


@pytest.mark.parametrize(
    "text",
    [
        "  %5(x) = Conv2D(%0, %1) {instance name: c}\n"
        "       : (<Tensor[Float32], (2, 3)>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (2)>)\n"
        "       : (<Float16xNC1HWC0[const vector][32, 16]>, <Float16xFracZ[const vector][1]>) -> (<Float32xNC1[1]>)\n"
        "       : full_name_with_scope: (Default/conv-Conv2d/Conv2D-op12)\n"
        "       # In file ./train.py(175)/        x = self.conv(x)/\n"
    ],
)
def test_graphs_of_older_versions_are_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "g.ir").write_text(f"subgraph @g() {{\n{text}}}\n")

    found, problem = read_graph(tmp_path / "g.ir")

    (node,) = found.nodes.values()
    assert not problem
    assert (node.full_name, node.types[1], node.held) == (
        "Default/conv-Conv2d/Conv2D-op12", ("float32",), (("float16", "float16"), ("float32",)),
    )  # fmt: skip
    assert node.source is not None
    assert (node.source.file, node.source.line, node.source.text) == ("./train.py", 175, "x = self.conv(x)")
    assert Flow(found).scope(node).site == "conv"
