"""importing.kinds.troubleshooter: npy folders of ts.save and ts.save_grad, named as its documentation shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.compare.engine import compare_runs
from hypocenter.importing.catalogue import IMPORTERS, NotADumpError, import_dump
from hypocenter.importing.kinds.troubleshooter import Saved, parse
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.summary.reducers.numpy import summarize


def saved(folder: Path, values: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in values.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def imported(dump: Path, out: Path) -> RecordedRun:
    IMPORTERS.load()
    return open_run(import_dump(dump, str(out)).directory)


def an_array(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "site", "port", "phase"),
    [
        ("0_input.npy", "input", "out[0]", "forward"),
        ("2_dense_backward.npy", "dense", "grad_out[0]", "backward"),
        ("5_ms_tensor.x2.npy", "ms_tensor", "out[x2]", "forward"),
        ("ms_tensor.0_float32_2.npy", "ms_tensor", "out[0]", "forward"),
        ("dense_backward_bfloat16_7.npy", "dense", "grad_out[0]", "backward"),
        ("0_torch_grads_fc.weight_0.npy", "fc.weight", "grad", "grad"),  # of 2023-11
        ("3_torch_grads.fc.weight.npy", "fc.weight", "grad", "grad"),
        ("ms_grads.0_Float32_3.npy", "ms_grads.0", "grad", "grad"),  # a list: names are not known
        ("Functional_pad_0_forward_input.0.npy", "Functional.pad", "in[0]", "forward"),
        ("Tensor_permute_3_backward_input.npy", "Tensor.permute", "grad_out[0]", "backward"),
    ],
)
def test_names_tell_what_was_saved(name: str, site: str, port: str, phase: str) -> None:
    found = parse(name)

    assert found is not None
    assert (found.site, found.port, found.phase) == (site, port, phase)


@pytest.mark.parametrize("name", ["weights.npy", "a_b.npy", "1_a.txt", "_.npy", "1_" + "a" * 2000 + ".npy"])
def test_other_names_are_left_alone(name: str) -> None:
    assert parse(name) is None


@given(st.text(max_size=60))
def test_any_name_is_parsed_or_refused(text: str) -> None:
    for name in (text, f"{text}.npy", f"1_{text}.npy", f"{text}_float32_1.npy"):
        found = parse(name)

        assert found is None or isinstance(found, Saved)
        assert found is None or found.site


def test_values_in_the_order_in_which_they_were_saved(tmp_path: Path) -> None:
    x, y, g = an_array(0, 2, 3), an_array(1, 2, 2), an_array(2, 2, 2)
    dump = saved(tmp_path / "dump", {"0_input": x, "1_dense": y, "10_dense": 2 * y, "11_dense_backward": g})

    run = imported(dump, tmp_path / "run")

    assert run.run.imported is not None
    assert run.run.imported.kind == "troubleshooter"
    rows = sorted(run.readings(), key=lambda r: r.order)
    assert [(r.site, r.port, r.call) for r in rows] == [
        ("input", "out[0]", 0), ("dense", "out[0]", 0), ("dense", "out[0]", 1), ("dense", "grad_out[0]", 0),
    ]  # fmt: skip
    for row, array in zip(rows, (x, y, 2 * y, g), strict=True):
        assert row.summary == summarize(array, sketch=True)
        assert (row.lacks, row.shape) == ("", array.shape)


def test_two_folders_are_compared_value_by_value(tmp_path: Path) -> None:
    """The tool numbers all files of a process: the numbers differ, the names say what belongs together."""
    x, y, g = an_array(0, 2, 3), an_array(1, 2, 2), an_array(2, 2, 2)
    torch = saved(tmp_path / "pt", {"0_input": x, "1_dense": y, "2_dense_backward": g})
    ours = saved(tmp_path / "ms", {"input_float32_7": x, "dense_float32_8": y * 1.001, "dense_backward_float32_9": g})
    equal = saved(tmp_path / "eq", {"3_input": x, "4_dense": y, "5_dense_backward": g})
    runs = [imported(dump, tmp_path / f"run-{dump.name}") for dump in (torch, ours, equal)]

    found = compare_runs(runs[0], runs[1])

    assert found.status == "diverged"
    assert found.first is not None
    assert found.first.site == "dense"
    assert compare_runs(runs[0], runs[2]).status == "same"


def test_folders_tell_ranks_and_steps(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step in (0, 2):
            saved(tmp_path / "dump" / f"step{step}" / f"rank{rank}", {"0_x": an_array(10 * rank + step, 4)})

    run = imported(tmp_path / "dump", tmp_path / "run")

    assert {(rank, record.step) for rank, record in run.step_records()} == {(0, 0), (0, 2), (1, 0), (1, 2)}
    assert next(run.readings(rank=1, steps=[2])).summary == summarize(an_array(12, 4), sketch=True)


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    dump = saved(tmp_path / "dump", {"0_x": an_array(0, 4), "1_y": an_array(1, 4), "2_z": an_array(2, 4)})
    np.save(dump / "1_y.npy", np.array([object()], dtype=object), allow_pickle=True)
    (dump / "2_z.npy").write_bytes((dump / "2_z.npy").read_bytes()[:-4])
    np.save(dump / "weights.npy", an_array(3, 4))

    run = imported(dump, tmp_path / "run")

    assert [r.site for r in run.readings()] == ["x"]
    problems = " ".join(run.run.warnings)
    assert "1_y.npy" in problems
    assert "2_z.npy" in problems
    assert "1 npy files with names of another kind" in problems


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "dump", {"weights": an_array(0, 4)})

    with pytest.raises(NotADumpError):
        imported(tmp_path / "dump", tmp_path / "run")
