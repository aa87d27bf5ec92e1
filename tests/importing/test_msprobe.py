"""importing.kinds.msprobe: the numbers of the tool's own files, under our names."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hypocenter.compare.comparison import Spot
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import RecordedRun

sys.path.insert(0, str(Path(__file__).parent))
from dumps import MSPROBE, forward, imported, numbers_of, row, rows, sums_of, sums_told, tensor, told, write  # isort: skip

WHOLE = sorted(
    path.relative_to(MSPROBE).as_posix()
    for folder in (MSPROBE, MSPROBE / "pair", MSPROBE / "overflow")
    for path in folder.iterdir()
    if any(path.glob("step*"))
)


@pytest.mark.parametrize("name", WHOLE)
def test_every_tensor_has_the_numbers_of_the_tools_own_file(name: str, tmp_path: Path) -> None:
    run = imported(MSPROBE / name, tmp_path / "run")

    assert numbers_of(run) == told(MSPROBE / name)
    assert sums_of(run) == sums_told(MSPROBE / name)
    assert len(WHOLE) >= 20


def test_norms_and_means_become_sums_that_are_called_rough(tmp_path: Path) -> None:
    data = {"Functional.linear.0.forward": forward([], [tensor(3, -1, mean=0.5, norm=4)])}
    run = imported(write(tmp_path / "d", data), tmp_path / "run")

    reading = row(run, port="out[0]")

    assert (reading.summary.sum, reading.summary.sumsq) == (3.0, 16.0)
    assert reading.lacks.split() == ["histogram", "rough"]
    assert (reading.summary.n, reading.summary.n_hist, reading.summary.absmax) == (6, 0, 3.0)


@pytest.mark.parametrize(
    ("numbers", "summary", "lacks"),
    [
        ({"high": math.nan, "low": math.nan}, {"n_nan": 1}, "histogram counts extremes sum sumsq"),
        ({"high": math.inf, "low": -1.0}, {"n_posinf": 1, "min": -1.0}, "histogram counts extremes sum sumsq"),
        ({"high": 5.0, "low": -math.inf}, {"n_neginf": 1, "max": 5.0}, "histogram counts extremes sum sumsq"),
        ({"high": 5.0, "low": 1.0, "norm": math.inf, "mean": 3.0}, {"n_posinf": 0, "sum": 18.0},
         "histogram sumsq rough"),
        ({"high": 5, "low": 1, "norm": None, "mean": None}, {"max": 5.0}, "histogram sum sumsq"),
        ({"high": None, "low": None, "norm": None, "mean": None}, {"max": None}, "counts histogram extremes sum sumsq"),
        ({"high": 2.0, "low": 2.0, "norm": 4.9, "mean": 2.0}, {"n_hist": 6, "n_zero": 0, "sum": 12.0}, ""),
        ({"high": 0.0, "low": 0.0, "norm": 0.0, "mean": 0.0}, {"n_hist": 6, "n_zero": 6}, ""),
    ],
)  # fmt: skip
def test_what_four_numbers_do_not_tell_is_said(
    numbers: dict[str, Any], summary: dict[str, Any], lacks: str, tmp_path: Path
) -> None:
    high, low = numbers.pop("high"), numbers.pop("low")
    leaf = tensor(1, 0) | {"Max": high, "Min": low, "Mean": numbers.get("mean"), "Norm": numbers.get("norm")}
    run = imported(write(tmp_path / "d", {"Tensor.add.0.forward": forward([], [leaf])}), tmp_path / "run")

    reading = row(run, port="out[0]")

    assert {name: getattr(reading.summary, name) for name in summary} == summary
    assert reading.lacks == lacks


def test_modules_and_apis_have_the_names_of_the_program(tmp_path: Path) -> None:
    run = imported(MSPROBE / "two_ranks_mix", tmp_path / "run")  # the wrapper's `module.` is off

    first = [(r.phase, r.site, r.op, r.port) for r in rows(run, step=0) if r.phase != "param"][:4]

    assert first[:2] == [("forward", "", "", "in[0]")] * 2  # of both ranks
    assert ("forward", "0", "", "in[0]") in first
    assert {r.site for r in rows(run, phase="grad")} == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert {r.op for r in rows(run, phase="optimizer")} == {"Tensor.add_"}
    line = row(run, step=1, op="Tensor.__pow__", port="out[0]", phase="forward", summary=_pow(run)).source
    assert line is not None
    assert (line.file, line.line) == ("/home/me/train/ddp.py", 18)


def _pow(run: RecordedRun) -> Any:
    return rows(run, step=1, op="Tensor.__pow__", port="out[0]", phase="forward")[1].summary


def test_a_module_begins_before_what_it_calls_though_its_entry_comes_after(tmp_path: Path) -> None:
    run = imported(MSPROBE / "pair/baseline_L0", tmp_path / "run")

    orders = {(r.site, r.port): r.order for r in rows(run, phase="forward", call=0)}

    assert orders["blocks.0", "in[0]"] < orders["blocks.0.attn", "in[0]"] < orders["blocks.0.attn.qkv", "in[0]"]
    assert orders["blocks.0.attn.proj", "out[0]"] < orders["blocks.0.attn", "out[0]"] < orders["blocks.0.mlp", "in[0]"]


@pytest.mark.parametrize("mode", ["reentrant", "non_reentrant"])
def test_a_checkpoints_recompute_is_told_from_a_second_call(mode: str, tmp_path: Path) -> None:
    run = imported(MSPROBE / f"checkpoint_{mode}_mix", tmp_path / "run")

    assert {r.site for r in rows(run, recompute=True, op="")} >= {"i1.a", "i1.r"}
    assert {r.call for r in run.readings() if r.site.startswith("i1")} == {0}
    assert [record.n_microbatches for _, record in run.step_records()] == [1]
    backward = {r.site for r in rows(run, phase="backward", op="")}
    assert backward >= {"i1.a", "i1.b", "i2.a"}


def test_modules_called_again_after_their_backward_begin_a_micro_batch(tmp_path: Path) -> None:
    data: dict[str, Any] = {}
    for n in range(2):
        data[f"Module.fc.Linear.forward.{n}"] = forward([tensor(1, 0)], [tensor(2, 0)])
        data[f"Functional.mse_loss.{n}.forward"] = forward([tensor(2, 0)], [tensor(3 + n, 3 + n, shape=())])
        data[f"Functional.mse_loss.{n}.backward"] = {"input": [tensor(1, 1, shape=())], "output": [tensor(1, 0)]}
        data[f"Module.fc.Linear.backward.{n}"] = {"input": [tensor(1, 0)], "output": [tensor(1, 0)]}
    parents = {f"Module.fc.Linear.forward.{n}": None for n in range(2)}
    run = imported(write(tmp_path / "d", data, parents=parents), tmp_path / "run")

    seen = {(r.phase, r.microbatch, r.call, r.recompute) for r in rows(run, site="fc")}

    assert seen == {(phase, n, 0, False) for phase in ("forward", "backward") for n in range(2)}
    assert [(record.n_microbatches, record.loss) for _, record in run.step_records()] == [(2, 3.5)]


def test_the_loss_is_what_backward_began_at_unless_it_may_carry_a_scale(tmp_path: Path) -> None:
    def run_of(api: str, name: str) -> RecordedRun:
        data = {f"{api}.0.forward": forward([tensor(2, 0)], [tensor(4, 4, shape=())]),
                f"{api}.0.backward": {"input": [tensor(1, 1, shape=())], "output": [tensor(1, 0)]}}  # fmt: skip
        return imported(write(tmp_path / name, data), tmp_path / f"run-{name}")

    assert [record.loss for _, record in run_of("Functional.cross_entropy", "a").step_records()] == [4.0]
    assert [record.loss for _, record in run_of("Tensor.__mul__", "b").step_records()] == [None]


def test_at_level_l1_what_comes_after_backward_is_the_update_until_a_function_begins_anew(tmp_path: Path) -> None:
    add = forward([tensor(1, 0)], [tensor(1, 0)])
    data = {
        "Functional.linear.0.forward": add,
        "Functional.linear.0.backward": {"input": [tensor(1, 1)], "output": [tensor(1, 0)]},
        "Tensor.add_.0.forward": add,
        "Functional.linear.1.forward": add,
        "Functional.linear.1.backward": {"input": [tensor(1, 1)], "output": [tensor(1, 0)]},
        "Tensor.add_.1.forward": add,
        "Torch.sqrt.0.forward": add,
        "Functional.linear.2.forward": add,
        "Torch.sqrt.1.forward": add,
    }
    run = imported(write(tmp_path / "d", data, level="L1"), tmp_path / "run")

    outs = [(r.phase, r.site, r.op) for r in rows(run, port="out[0]")]

    assert outs == [
        ("forward", "Functional.linear", ""), ("forward", "Tensor.add_", ""), ("forward", "Functional.linear", ""),
        ("optimizer", "", "Tensor.add_"), ("optimizer", "", "Torch.sqrt"), ("forward", "Functional.linear", ""),
        ("forward", "Torch.sqrt", ""),
    ]  # fmt: skip


def test_values_are_read_without_their_pickles_and_can_be_compared(tmp_path: Path) -> None:
    run = imported(MSPROBE / "L0_tensor", tmp_path / "run")

    exact = [r for r in run.readings() if not r.lacks and r.summary.n > 1 and r.summary.n_hist]
    of_tool = {(r.site, r.port): r for r in exact}["blocks.0.ln1", "out[0]"]
    values = RecordedValues(run)
    held = values.find(Spot(phase="forward", site="blocks.0.ln1", port="out[0]"), 0, 0)
    again = compare_runs(run, imported(MSPROBE / "L0_tensor", tmp_path / "again"))

    assert held is not None
    assert float(np.square(held.values()).sum()) == pytest.approx(of_tool.summary.sumsq, rel=1e-6)
    assert any("files of values are not there" in line for line in run.run.warnings)  # the sample holds a few
    assert again.status == "same"


def test_parameters_and_their_gradients_are_found_among_the_values(tmp_path: Path) -> None:
    values = RecordedValues(imported(MSPROBE / "L0_tensor", tmp_path / "run"))

    keys = {key for path in (tmp_path / "run").rglob("*.safetensors") for key in _keys(values, path)}

    assert "weight" in keys
    assert any(key.startswith("in[0]") for key in keys)


def _keys(values: RecordedValues, path: Path) -> set[str]:
    return set(values.site(path.stem, 0, 0))


def test_a_debug_dump_has_a_site_for_each_name(tmp_path: Path) -> None:
    run = imported(MSPROBE / "debug_tensor", tmp_path / "run")

    reading = row(run, site="tok_out")

    assert (reading.phase, reading.port, reading.lacks) == ("forward", "out[0]", "")


def test_names_without_values_leave_nothing_to_judge(tmp_path: Path) -> None:
    run = imported(MSPROBE / "mindspore_structure", tmp_path / "run")

    found = diagnose(run)

    assert found.status == "cannot-tell"
    assert found.why == ("the dump of msprobe holds no values",)
    assert run.facts() is not None


def test_checksums_become_digests_that_compare_with_their_kind_alone(tmp_path: Path) -> None:
    def run_of(name: str, md5: str) -> RecordedRun:
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4], "requires_grad": True, "md5": md5}
        data = {"Module.fc.Linear.forward.0": forward([leaf], [leaf])}
        parents = {"Module.fc.Linear.forward.0": None}
        return imported(write(tmp_path / name, data, parents=parents, level="L0"), tmp_path / f"run-{name}")

    crc, same, xor = run_of("a", "31ca44f1"), run_of("b", "31ca44f1"), run_of("c", "0xf00000000000001b")

    assert {r.digest for r in crc.readings()} == {0x31CA44F1}
    assert {r.digest for r in xor.readings()} == {0xF00000000000001B - (1 << 64)}
    assert compare_runs(crc, same).status == "same"
    assert compare_runs(crc, xor).status == "cannot-tell"


def test_arguments_of_apis_are_attributes_of_their_module(tmp_path: Path) -> None:
    run = imported(MSPROBE / "pair/layernorm_eps_mix", tmp_path / "run")

    facts = run.facts()

    assert facts is not None
    eps = {m.path: m.attributes["eps"] for m in facts.modules if "eps" in m.attributes}
    assert (eps["blocks.2.ln1"], eps["blocks.2.ln2"], eps["blocks.1.ln1"]) == (1e-3, 1e-3, 1e-5)


def test_ranks_and_steps_are_those_of_the_folders(tmp_path: Path) -> None:
    run = imported(MSPROBE / "two_ranks_mix", tmp_path / "run")

    assert run.ranks == [0, 1]
    assert run.run.world_size == 2
    assert sorted({(rank, record.step) for rank, record in run.step_records()}) == [
        (r, s) for r in (0, 1) for s in (0, 1, 2)
    ]
    assert run.run.imported is not None
    assert run.run.imported.kind == "msprobe"
    assert not run.problems


def test_a_second_dump_of_the_same_rank_and_step_is_named(tmp_path: Path) -> None:
    data = {"Tensor.add.0.forward": forward([], [tensor(1, 0)])}
    write(tmp_path / "d" / "one", data)
    write(tmp_path / "d" / "two", data)

    run = imported(tmp_path / "d", tmp_path / "run")

    assert any("two/step0/rank0/dump.json is left out" in line for line in run.run.warnings)
