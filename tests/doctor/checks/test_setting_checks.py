"""Settings that contradict each other."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_machine import SWITCHES, Made


@pytest.mark.parametrize(
    ("value", "deterministic", "status"),
    [
        ("", False, "not-applicable"), ("", True, "problem"), (":4096:8", True, "ok"), (":16:8", False, "ok"),
        (":4096:2:16:8", True, "problem"), (":4096:2:16:8", False, "warning"), ("4096", False, "warning"),
    ],
)  # fmt: skip
def test_cublas_workspace(tmp_path: Path, value: str, deterministic: bool, status: str) -> None:
    made = Made(root=tmp_path)
    made.environ["CUBLAS_WORKSPACE_CONFIG"] = value
    made.torch["switches"] = {**SWITCHES, "deterministic_algorithms": deterministic}

    assert made.look("setting.cublas-workspace").status == status


@pytest.mark.parametrize(
    ("override", "cublas", "precision", "status"),
    [
        ("1", "", "highest", "warning"), ("0", "", "highest", "ok"), ("0", "1", "highest", "warning"),
        ("1", "1", "highest", "ok"), ("1", "", "high", "ok"), ("0", "", "high", "warning"),
        ("", "1", "high", "not-applicable"),
    ],
)  # fmt: skip
def test_tf32_by_two_settings(tmp_path: Path, override: str, cublas: str, precision: str, status: str) -> None:
    made = Made(root=tmp_path)
    made.environ |= {"NVIDIA_TF32_OVERRIDE": override, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": cublas}
    made.torch["switches"] = {**SWITCHES, "float32_matmul_precision": precision}

    assert made.look("setting.tf32").status == status


@pytest.mark.parametrize(
    ("threads", "ranks", "status"),
    [
        ("8", "1", "ok"),
        ("16", "1", "ok"),
        ("17", "1", "warning"),
        ("4", "8", "warning"),
        ("1", "8", "ok"),
        ("", "8", "not-applicable"),
        ("abc", "1", "warning"),
        ("0", "1", "warning"),
        ("-4", "1", "warning"),
        ("8,2", "1", "ok"),
        ("17,2", "1", "warning"),
    ],
)
def test_threads_of_all_ranks(tmp_path: Path, threads: str, ranks: str, status: str) -> None:
    made = Made(root=tmp_path)
    made.environ |= {"OMP_NUM_THREADS": threads, "LOCAL_WORLD_SIZE": ranks}

    found = made.look("setting.threads")

    assert found.status == status
    if status == "warning" and ranks == "8":
        assert found.fix == ("export OMP_NUM_THREADS=1",)
