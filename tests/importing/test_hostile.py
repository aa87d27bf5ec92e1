"""Importing what was damaged, or made to do harm: one clear error, or a run and a problem; no code is run."""

from __future__ import annotations

import io
import json
import pickle
import random
import shutil
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.errors import HypocenterError
from hypocenter.importing.catalogue import import_dump
from hypocenter.record.reader import open_run

sys.path.insert(0, str(Path(__file__).parent))
from dumps import MSPROBE, PTDBG, forward, imported, row, rows, tensor, write  # isort: skip

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

WORDS = [b"NaN", b"1e999", b"-1", b"[", b"{", b'"', b"null", b"9" * 30, b"\\u0000", b"\0", b"../"]


def tried(path: Path, out: Path, kind: str) -> None:
    """Import and check it; only an error of ours may come."""
    shutil.rmtree(out, ignore_errors=True)
    try:
        done = import_dump(path, str(out), kind=kind)
    except HypocenterError:
        return
    diagnose(open_run(done.directory))


def damaged(data: bytes, rng: random.Random) -> bytes:
    how = rng.randrange(4)
    if how == 0:
        return data[: rng.randrange(len(data))]
    out = bytearray(data)
    for _ in range(rng.randrange(1, 8)):
        at = rng.randrange(len(out))
        if how == 1:
            out[at] ^= 1 << rng.randrange(8)
        elif how == 2:
            del out[at : at + rng.randrange(1, 30)]
        else:
            out[at:at] = rng.choice(WORDS)
    return bytes(out)


@pytest.mark.night
@quick
@given(seed=st.integers(0, 2**32))
def test_a_damaged_msprobe_dump_gives_a_run_or_one_error(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    dump = tmp_path / f"d{seed}"
    shutil.copytree(MSPROBE / "two_ranks_mix" / "step1", dump / "step1")
    for file in dump.rglob("*.json"):
        if rng.random() < 0.7:
            file.write_bytes(damaged(file.read_bytes(), rng))

    tried(dump, tmp_path / "run", "msprobe")
    shutil.rmtree(dump)


@pytest.mark.night
@quick
@given(seed=st.integers(0, 2**32))
def test_damaged_lines_of_ptdbg_give_a_run_or_one_error(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    (source,) = (PTDBG / "v3.0_dot_all").rglob("step1/*/*.pkl")
    folder = tmp_path / "step1" / "rank0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump.pkl").write_bytes(damaged(source.read_bytes(), rng))

    tried(tmp_path / "step1", tmp_path / "run", "ptdbg")


@pytest.mark.night
@quick
@given(seed=st.integers(0, 2**32))
def test_a_damaged_monitor_gives_a_run_or_one_error(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    folder = tmp_path / "m"
    folder.mkdir(exist_ok=True)
    for file in (MSPROBE / "monitor_csv").glob("*.csv"):
        (folder / file.name).write_bytes(damaged(file.read_bytes(), rng))

    tried(folder, tmp_path / "run", "msprobe-monitor")


@pytest.mark.night
@quick
@given(seed=st.integers(0, 2**32))
def test_damaged_files_of_values_are_left_out(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    source = next((MSPROBE / "L0_tensor").rglob("*LayerNorm.forward.0.output.0.pt"))
    leaf = tensor(1, 0, shape=(2, 4, 8), data_name="x.pt")
    write(tmp_path / "d", {"Module.a.LayerNorm.forward.0": forward([], [leaf])}, level="L0", task="tensor")
    values = tmp_path / "d" / "step0" / "rank0" / "dump_tensor_data"
    values.mkdir(exist_ok=True)
    (values / "x.pt").write_bytes(damaged(source.read_bytes(), rng))

    tried(tmp_path / "d", tmp_path / "run", "msprobe")


class Harm:
    """Its pickle makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _with_values(tmp_path: Path, name: str, data: bytes, **more: Any) -> Path:
    leaf = tensor(1, 0, data_name=name, **more)
    root = write(tmp_path / "d", {"Module.a.Linear.forward.0": forward([], [leaf])}, level="L0", task="tensor")
    values = root / "step0" / "rank0" / "dump_tensor_data"
    values.mkdir()
    if data:
        (values / name).write_bytes(data)
    return root


def test_pickles_in_files_of_values_are_not_run(tmp_path: Path) -> None:
    made = tmp_path / "harm"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x/data.pkl", pickle.dumps(Harm(made)))
    objects = io.BytesIO()
    np.save(objects, np.array([Harm(made)], dtype=object), allow_pickle=True)

    for name, data in (("x.pt", archive.getvalue()), ("x.npy", objects.getvalue()), ("y.pt", pickle.dumps(Harm(made)))):
        run = imported(_with_values(tmp_path / name, name, data), tmp_path / f"run-{name}")
        assert any("values are left out" in line for line in run.run.warnings)
        assert row(run, port="out[0]").summary.max == 1.0  # of the statistics

    assert not made.exists()


def test_a_pickle_in_place_of_ptdbgs_lines_is_not_run(tmp_path: Path) -> None:
    folder = tmp_path / "step0" / "rank0"
    folder.mkdir(parents=True)
    (folder / "dump.pkl").write_bytes(pickle.dumps(Harm(tmp_path / "harm")))

    with pytest.raises(HypocenterError) as caught:
        imported(tmp_path / "step0", tmp_path / "run", "ptdbg")

    assert "lines are of another kind" in caught.value.why
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("name", ["../../../secret.pt", "/etc/passwd", "a\0b.pt", "x" * 5000, "..", ".hidden.pt"])
def test_names_that_lead_elsewhere_are_no_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.pt").write_bytes(b"secret")

    run = imported(_with_values(tmp_path, name, b""), tmp_path / "run")

    assert any("is no name of a file" in line for line in run.run.warnings)


@pytest.mark.parametrize("site", ["../../../x", "/etc/cron.d/x", "a/b", "..", "x" * 3000, "a\x1bb"])
def test_names_of_modules_cannot_lead_out_of_the_run(site: str, tmp_path: Path) -> None:
    source = next((MSPROBE / "L0_tensor").rglob("*LayerNorm.forward.0.output.0.pt"))
    leaf = tensor(1, 0, shape=(2, 4, 8), data_name="x.pt")
    root = write(tmp_path / "d", {f"Module.{site}.Linear.forward.0": forward([], [leaf])}, level="L0")
    (root / "step0" / "rank0" / "dump_tensor_data").mkdir()
    shutil.copy(source, root / "step0" / "rank0" / "dump_tensor_data" / "x.pt")
    before = {path for path in tmp_path.rglob("*") if (tmp_path / "run") not in path.parents}

    imported(root, tmp_path / "run")

    after = {path for path in tmp_path.rglob("*") if (tmp_path / "run") not in path.parents}
    assert after - before <= {tmp_path / "run"}
    assert list((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize(
    "shape", [[10**30], [-1], [2**40, 2**40], ["2"], "2", None, [1.5], [True], [0] * 100, [[2]], {"a": 1}]
)
def test_shapes_that_cannot_be_are_left_out(shape: Any, tmp_path: Path) -> None:
    leaf = tensor(1, 0) | {"shape": shape}

    run = imported(write(tmp_path / "d", {"Tensor.add.0.forward": forward([leaf], [tensor(2, 0)])}), tmp_path / "run")

    assert [r.port for r in rows(run)] == ["out[0]"]
    assert any("without a shape" in line for line in run.run.warnings)


def test_a_claim_of_many_elements_takes_no_memory(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)})
    root = _with_values(tmp_path, "x.npy", header.getvalue() + b"\0" * 64, shape=(1 << 40,))
    tracemalloc.start()
    try:
        run = imported(root, tmp_path / "run")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 64 << 20
    assert row(run).shape == (1 << 40,)
    assert any("cut off" in line for line in run.run.warnings)


def test_statistics_of_any_kind_are_numbers_or_not_known(tmp_path: Path) -> None:
    odd = [10**400, -(10**400), "inf", [1], {"a": 1}, True, 1e308, -0.0]
    data = {f"Tensor.add.{i}.forward": forward([], [tensor(1, 0) | {"Max": value, "Mean": value, "Norm": value}])
            for i, value in enumerate(odd)}  # fmt: skip

    run = imported(write(tmp_path / "d", data), tmp_path / "run")

    assert len(rows(run)) == len(odd)
    assert all(np.isfinite([r.summary.sum, r.summary.sumsq, r.summary.absmax]).all() for r in run.readings())


def test_a_chain_of_parents_without_end_is_cut(tmp_path: Path) -> None:
    parents = {"Tensor.add.0.forward": "Module.a.A.forward.0", "Module.a.A.forward.0": "Module.b.B.forward.0",
               "Module.b.B.forward.0": "Module.a.A.forward.0"}  # fmt: skip

    run = imported(write(tmp_path / "d", {"Tensor.add.0.forward": forward([], [tensor(2, 0)])}, parents=parents),
                   tmp_path / "run")  # fmt: skip

    assert row(run).site == "a"


def test_a_dump_whose_tail_is_missing_keeps_what_is_there(tmp_path: Path) -> None:
    shutil.copytree(MSPROBE / "two_ranks_mix" / "step0", tmp_path / "d" / "step0")
    for file in (tmp_path / "d").rglob("dump.json"):
        text = file.read_text()
        file.write_text(text[: len(text) // 2])

    run = imported(tmp_path / "d", tmp_path / "run")

    assert len(rows(run)) > 30
    assert any("cut off or damaged after" in line for line in run.run.warnings)
    assert any("cut off" in note for note in diagnose(run).notes)


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({}, "nobody knows what kind of dump this is"),
        ({"step0/rank0/dump.json": ""}, "there is nothing in this dump"),
        ({"step0/rank0/dump.json": "[]"}, "there is nothing in this dump"),
        ({"readme.txt": "hello"}, "nobody knows what kind of dump this is"),
    ],
)
def test_what_is_no_dump_is_one_error_and_leaves_no_run(files: dict[str, str], what: str, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name, text in files.items():
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text(text)

    with pytest.raises(HypocenterError) as caught:
        import_dump(tmp_path / "d", str(tmp_path / "run"))

    assert caught.value.what.startswith(what)
    assert caught.value.exit_code == 4
    assert not (tmp_path / "run").exists()


def test_many_links_to_one_folder_are_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "d", {"Tensor.add.0.forward": forward([], [tensor(2, 0)])})
    (tmp_path / "d" / "step0" / "again").symlink_to(tmp_path / "d")

    run = imported(tmp_path / "d", tmp_path / "run")

    assert len(rows(run)) == 1
    assert json.loads((tmp_path / "run" / "run.json").read_text())["imported"]["kind"] == "msprobe"
