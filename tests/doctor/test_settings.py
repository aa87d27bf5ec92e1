"""Settings that change numbers: what is set here, and what differs between ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_machine import SWITCHES, Made

from hypocenter import deterministic
from hypocenter.doctor.settings import Kind, compare, described, examine_settings, manuals, settings, snapshot
from hypocenter.manual import HEADINGS

FACTS = {"version": "2.6.0", "cuda": "12.4", "nccl": "2.21.5", "switches": SWITCHES}


def checks_with(tmp_path: Path, **environ: str) -> dict[str, str]:
    """Status of what is said, by title."""
    made = Made(root=tmp_path)
    made.environ |= environ
    return {one.title: one.status for one in examine_settings(made.machine())}


def test_every_row_of_the_table_is_whole() -> None:
    rows = settings()

    assert len({(row.kind, row.name) for row in rows}) == len(rows) > 80
    assert all(row.changes and row.default and row.source for row in rows)
    assert not [row.name for row in rows if row.changes.endswith(".")]


def test_no_row_is_hidden_behind_an_earlier_one() -> None:
    hidden = [row.name for row in settings() if "*" not in row.name and described(row.name, row.kind) is not row]

    assert hidden == []


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("NVIDIA_TF32_OVERRIDE", "1", "warning"), ("NVIDIA_TF32_OVERRIDE", "0", "ok"),
        ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1", "warning"), ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", "ok"),
        ("PYTHONHASHSEED", "random", "warning"), ("PYTHONHASHSEED", "0", "ok"), ("NCCL_ALGO", "Ring", "ok"),
        ("NCCL_P2P_DISABLE", "1", "warning"), ("TORCHINDUCTOR_MAX_AUTOTUNE_GEMM", "1", "warning"),
        ("HCCL_DETERMINISTIC", "true", "ok"), ("INF_NAN_MODE_ENABLE", "0", "warning"),
        ("MS_ASCEND_CHECK_OVERFLOW_MODE", "INFNAN_MODE", "ok"), ("ASCEND_LAUNCH_BLOCKING", "1", "ok"),
        ("MS_ASCEND_CHECK_OVERFLOW_MODE", "saturation_mode", "warning"), ("OMP_NUM_THREADS", "4", "ok"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16", "warning"), ("MKL_CBWR", "COMPATIBLE", "ok"),
    ],
)  # fmt: skip
def test_a_variable_that_is_set_is_reported(tmp_path: Path, name: str, value: str, status: str) -> None:
    assert checks_with(tmp_path, **{name: value})[name] == status


def test_variables_that_change_only_speed_are_one_line(tmp_path: Path) -> None:
    found = checks_with(tmp_path, NCCL_DEBUG="INFO", HCCL_CONNECT_TIMEOUT="600", HOME="/home/me")

    assert found == {"torch's switches": "ok", "other variables": "ok"}


def test_a_switch_that_something_turned_on_is_a_warning(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.torch["switches"] = {**SWITCHES, "cuda.matmul.allow_tf32": True}

    (found,) = examine_settings(made.machine())

    assert (found.status, found.what) == ("warning", "in a fresh process, cuda.matmul.allow_tf32 is true")


def test_switches_of_a_torch_that_cannot_be_asked_are_not_invented(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.torch = {"status": "failed"}

    assert list(examine_settings(made.machine())) == []


def test_equal_ranks_are_one_line() -> None:
    taken = snapshot({"NCCL_ALGO": "Ring", "PATH": "/bin"}, FACTS)

    (found,) = compare({0: taken, 1: taken, 2: dict(taken)})

    assert found.status == "ok"
    assert taken["variables"] == {"NCCL_ALGO": "Ring"}
    assert (
        found.what
        == f"{1 + len(taken['switches']) + len(taken['versions'])} settings and versions are equal on 3 ranks"
    )


def test_one_rank_that_differs_is_named_with_the_line_for_it() -> None:
    taken = {rank: snapshot({"NCCL_ALGO": "Ring"}, FACTS) for rank in range(4)}
    taken[2] = snapshot({"NCCL_ALGO": "Tree"}, FACTS)

    (found,) = compare(taken)

    assert (found.status, found.rank, found.title) == ("problem", 2, "NCCL_ALGO")
    assert found.what == "NCCL_ALGO is Tree on rank 2, and Ring on the other 3"
    assert found.fix == ("export NCCL_ALGO=Ring  # on every rank",)


def test_a_variable_that_only_one_rank_has() -> None:
    taken = {rank: snapshot({}, FACTS) for rank in range(4)}
    taken[3] = snapshot({"NVIDIA_TF32_OVERRIDE": "1"}, FACTS)

    (found,) = compare(taken)

    assert found.what == "NVIDIA_TF32_OVERRIDE is 1 on rank 3, and not set on the other 3"
    assert found.fix == ("unset NVIDIA_TF32_OVERRIDE  # on every rank",)


def test_versions_that_differ_are_a_problem() -> None:
    taken = {0: snapshot({}, FACTS), 1: snapshot({}, {**FACTS, "version": "2.5.1"}), 2: snapshot({}, FACTS)}

    (found,) = compare(taken)

    assert (found.status, found.title, found.rank) == ("problem", "torch", 1)


def test_another_number_of_threads_is_a_warning() -> None:
    taken = {0: snapshot({"OMP_NUM_THREADS": "8"}), 1: snapshot({"OMP_NUM_THREADS": "4"})}

    (found,) = compare(taken)

    assert found.status == "warning"


def test_what_may_differ_is_not_mentioned() -> None:
    taken = {
        0: snapshot({"NCCL_SOCKET_IFNAME": "eth0", "HCCL_IF_IP": "10.0.0.1"}),
        1: snapshot({"HCCL_IF_IP": "10.0.0.2"}),
    }

    (found,) = compare(taken)

    assert found.status == "ok"


def test_a_rank_that_was_not_asked_for_its_switches_does_not_differ() -> None:
    (found,) = compare({0: snapshot({}, FACTS), 1: snapshot({})})

    assert found.status == "ok"


def test_one_rank_alone_is_not_compared() -> None:
    assert list(compare({0: snapshot({})})) == []


def test_every_setting_has_a_whole_page() -> None:
    pages = manuals()

    assert "setting.equal-on-every-rank" in pages
    assert {code: page.missing for code, page in pages.items() if page.missing or not page.message} == {}
    assert [heading for heading, _ in pages["setting.NCCL_ALGO"].sections] == list(HEADINGS)


@pytest.mark.parametrize(
    ("name", "kind", "matters", "warns_at"),
    [
        ("HCCL_DETERMINISTIC", "variable", "order", None),
        ("HCCL_OP_EXPANSION_MODE", "variable", "order", None),
        ("HCCL_EXEC_TIMEOUT", "variable", "speed", None),
        ("CLOSE_MATMUL_K_SHIFT", "variable", "order", None),
        ("INF_NAN_MODE_ENABLE", "variable", "numbers", "0"),
        ("INF_NAN_MODE_FORCE_DISABLE", "variable", "numbers", "1"),
        ("MS_ASCEND_CHECK_OVERFLOW_MODE", "variable", "numbers", "SATURATION_MODE"),
        ("TORCH_NPU_LEGACY_IMPL_LIST", "variable", "numbers", None),
        ("TORCH_NPU_LOGS", "variable", "speed", None),
        ("npu.matmul.allow_hf32", "switch", "numbers", "true"),
    ],
)
def test_of_ascends_settings_it_is_known_what_they_change(
    name: str, kind: Kind, matters: str, warns_at: str | None
) -> None:
    row = described(name, kind)

    assert row is not None
    assert (row.matters, bool(row.source)) == (matters, True)
    assert warns_at is None or row.alarms_at(warns_at)


def test_what_deterministic_sets_is_a_setting_that_orders_sums_or_numbers() -> None:
    unknown = [name for name, _, _ in deterministic.VARIABLES if described(name, "variable") is None]

    assert [name for name in unknown if name.startswith(("HCCL", "LCCL", "ATB", "CLOSE", "ASCEND"))] == []
