"""Faults of an Ascend machine, made with a root of its own; a combination that nobody wrote down cannot be told."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_machine import Made

HOME = "/usr/local/Ascend/ascend-toolkit"


def ascend(tmp_path: Path, cann: str = "8.1.RC1", *, sourced: bool = True, **packages: str) -> Made:
    """A machine with an NPU, CANN and the packages, torch 2.5.1 without CUDA."""
    made = Made(root=tmp_path, cuda=None, driver="", packages={"torch": "2.5.1", **packages})
    made.torch["version"] = "2.5.1+cpu"
    made.file("/dev/davinci0")
    install(made, cann)
    made.link(f"{HOME}/latest", f"{HOME}/{cann}")
    if sourced:
        made.environ["ASCEND_HOME_PATH"] = f"{HOME}/latest"
        made.environ["LD_LIBRARY_PATH"] = f"{HOME}/latest/lib64"
    return made


def install(made: Made, cann: str) -> None:
    """A CANN toolkit as its installer leaves it."""
    made.file(
        f"{HOME}/{cann}/x86_64-linux/ascend_toolkit_install.info", f"package_name=Ascend-cann-toolkit\nversion={cann}\n"
    )
    made.file(f"{HOME}/{cann}/lib64/libhccl.so")
    made.file(f"{HOME}/set_env.sh")


def test_versions_that_belong_together_are_fine(tmp_path: Path) -> None:
    made = ascend(tmp_path, **{"torch-npu": "2.5.1", "mindspore": "2.6.0rc1", "mindformers": "1.5.0"})

    assert made.bad() == {}
    assert made.look("toolkit.torch-npu").what == "torch 2.5.1, torch_npu 2.5.1 and CANN 8.1.RC1 belong together"


def test_set_env_was_not_sourced(tmp_path: Path) -> None:
    made = ascend(tmp_path, sourced=False, **{"torch-npu": "2.5.1"})

    found = {code: made.look(code) for code in ("toolkit.cann", "toolkit.hccl")}

    assert [one.status for one in found.values()] == ["problem", "problem"]
    assert {one.fix for one in found.values()} == {(f"source {HOME}/set_env.sh",)}


def test_home_that_is_missing(tmp_path: Path) -> None:
    made = ascend(tmp_path)
    made.environ["ASCEND_HOME_PATH"] = "/opt/Ascend/latest"

    assert made.look("toolkit.cann").what == "ASCEND_HOME_PATH=/opt/Ascend/latest does not exist"


def test_two_releases_in_one_environment(tmp_path: Path) -> None:
    made = ascend(tmp_path)
    install(made, "8.0.RC3")
    made.environ["LD_LIBRARY_PATH"] += f":{HOME}/8.0.RC3/lib64"

    found = made.look("toolkit.cann")

    assert found.status == "problem"
    assert found.what == "ASCEND_HOME_PATH chooses CANN 8.1.RC1, and LD_LIBRARY_PATH also has CANN 8.0.RC3"


def test_two_releases_side_by_side_are_fine(tmp_path: Path) -> None:
    made = ascend(tmp_path)
    install(made, "8.0.RC3")

    assert made.look("toolkit.cann").status == "ok"


def test_npu_without_any_software(tmp_path: Path) -> None:
    made = Made(root=tmp_path, cuda=None, driver="")
    made.file("/dev/davinci0")

    assert made.look("toolkit.cann").status == "problem"


def test_torch_npu_for_another_torch(tmp_path: Path) -> None:
    made = ascend(tmp_path, **{"torch-npu": "2.4.0.post4"})

    found = made.look("toolkit.torch-npu")

    assert (found.status, found.fix) == ("problem", ("pip install torch-npu==2.5.1",))


def test_torch_npu_for_another_cann(tmp_path: Path) -> None:
    made = ascend(tmp_path, **{"torch-npu": "2.5.1.post1"})

    found = made.look("toolkit.torch-npu")

    assert found.status == "problem"
    assert found.what == "torch_npu 2.5.1.post1 belongs to CANN 8.2.RC1, in use is 8.1.RC1"
    assert found.fix[0] == "pip install torch-npu==2.5.1"


def test_torch_npu_that_cannot_be_imported(tmp_path: Path) -> None:
    made = ascend(tmp_path, **{"torch-npu": "2.5.1"})
    made.torch["npu"] = {"error": "ImportError: libhccl.so: cannot open shared object file"}

    assert made.look("toolkit.torch-npu").status == "problem"


@pytest.mark.parametrize(("cann", "torch_npu"), [("9.9.9", "2.5.1"), ("8.1.RC1", "2.5.1.post99")])
def test_torch_npu_that_nobody_wrote_down(tmp_path: Path, cann: str, torch_npu: str) -> None:
    made = ascend(tmp_path, cann, **{"torch-npu": torch_npu})

    status = made.look("toolkit.torch-npu").status

    assert status == ("problem" if cann == "9.9.9" else "cannot-tell")


@pytest.mark.parametrize(
    ("mindspore", "mindformers", "cann", "status"),
    [
        ("2.6.0rc1", "1.5.0", "8.1.RC1", "ok"),
        ("2.6.0-rc1", "1.5.0", "8.1.RC1.beta1", "ok"),  # other spellings of the same
        ("2.7.1", "", "8.3.RC1", "ok"),
        ("2.4.0", "1.5.0", "8.1.RC1", "problem"),
        ("2.6.0rc1", "1.5.0", "8.0.RC3", "problem"),
        ("3.0.0", "", "8.1.RC1", "cannot-tell"),
        ("2.6.0rc1", "1.4.0", "8.1.RC1", "cannot-tell"),
    ],
)
def test_mindspore_mindformers_and_cann(
    tmp_path: Path, mindspore: str, mindformers: str, cann: str, status: str
) -> None:
    made = ascend(tmp_path, cann, mindspore=mindspore, **({"mindformers": mindformers} if mindformers else {}))

    assert made.look("toolkit.mindspore").status == status


def test_release_is_read_from_version_cfg(tmp_path: Path) -> None:
    made = Made(root=tmp_path, cuda=None, driver="", packages={"mindspore": "2.4.0"})
    made.file("/opt/cann/version.cfg", "# version: 1.0\nruntime_running_version=[7.5.0.1.129:8.0.RC3]\n")
    made.environ["ASCEND_TOOLKIT_HOME"] = "/opt/cann"

    assert made.look("toolkit.mindspore").status == "ok"


def test_cpu_build_of_torch_is_right_beside_torch_npu(tmp_path: Path) -> None:
    made = ascend(tmp_path, **{"torch-npu": "2.5.1"})

    assert made.look("toolkit.gpu-visible").status == "not-applicable"


def test_ascend_s_software_on_a_machine_for_other_devices_is_nothing(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    install(made, "8.1.RC1")
    made.packages["mindspore"] = "2.6.0"

    assert made.bad() == {}


@pytest.mark.parametrize(("driver", "status"), [("24.1.rc3", "warning"), ("25.0.rc1", "ok"), ("25.2.0", "ok")])
def test_driver_that_is_older_than_the_table_s(tmp_path: Path, driver: str, status: str) -> None:
    made = ascend(tmp_path, mindspore="2.6.0rc1", mindformers="1.5.0")
    made.file("/usr/local/Ascend/driver/version.info", f"Version={driver}\nascendhal_version=7.35.19\n")

    assert made.look("toolkit.mindspore").status == status
