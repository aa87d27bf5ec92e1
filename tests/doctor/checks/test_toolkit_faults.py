"""Each fault of a CUDA installation, made with a root of its own, is found with its fix; near misses stay silent."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_machine import ARCHS, Made


def building(tmp_path: Path, **changes: object) -> Made:
    """A machine with a GPU on which DeepSpeed builds its operators, everything it needs in place."""
    made = Made(root=tmp_path, **changes)  # type: ignore[arg-type]
    made.use_deepspeed()
    made.gcc("11.4.0")
    made.program("ninja", "1.11.1\n")
    return made


def test_guide_s_machine_has_the_wrong_toolkit_first(tmp_path: Path) -> None:
    """The Transformers guide: torch with CUDA 10.2, /usr/local/cuda-10.2 and cuda-11.0, the newest first in PATH."""
    made = building(tmp_path, cuda="10.2", arch_list=("sm_37", "sm_50", "sm_60", "sm_70", "sm_75", "compute_75"))
    made.capabilities = ((7, 5),)
    made.gcc("7.5.0")
    made.toolkit("10.2", patch="89")
    made.put_first(made.toolkit("11.0"))

    found = made.look("toolkit.nvcc-matches-torch")

    assert found.status == "problem"
    assert found.what == "nvcc is 11.0 (/usr/local/cuda-11.0/bin/nvcc, by PATH), torch was built for CUDA 10.2"
    assert found.fix == (
        "export CUDA_HOME=/usr/local/cuda-10.2",
        "export PATH=/usr/local/cuda-10.2/bin:$PATH",
        "export LD_LIBRARY_PATH=/usr/local/cuda-10.2/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}",
    )


def test_the_printed_lines_cure_the_guide_s_machine(tmp_path: Path) -> None:
    made = building(tmp_path, cuda="10.2", arch_list=("sm_75",), capabilities=((7, 5),))
    made.gcc("7.5.0")
    right = made.toolkit("10.2", patch="89")
    made.put_first(made.toolkit("11.0"))
    assert made.bad()["toolkit.nvcc-matches-torch"] == "problem"

    made.put_first(right)
    made.environ["CUDA_HOME"] = right

    assert made.bad() == {"toolkit.deepspeed-ops": "warning"}  # only that they are not built ahead


def test_right_toolkit_is_installed_nowhere(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("11.8"))

    found = made.look("toolkit.nvcc-matches-torch")

    assert found.status == "problem"
    assert any("cuda-toolkit-12-4" in line for line in found.fix)


def test_another_minor_release_is_a_warning(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("12.1"))

    assert made.look("toolkit.nvcc-matches-torch").status == "warning"


def test_no_nvcc_where_extensions_are_built(tmp_path: Path) -> None:
    made = building(tmp_path)

    found = made.look("toolkit.nvcc-matches-torch")

    assert found.status == "problem"
    assert "DeepSpeed builds its operators" in found.what


def test_no_nvcc_is_nothing_where_no_extensions_are_built(tmp_path: Path) -> None:
    made = Made(root=tmp_path)

    assert made.look("toolkit.nvcc-matches-torch").status == "ok"
    assert made.bad() == {}


def test_wrong_nvcc_is_a_warning_where_no_extensions_are_built(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.put_first(made.toolkit("11.8"))

    assert made.bad()["toolkit.nvcc-matches-torch"] == "warning"
    assert "problem" not in made.bad().values()


def test_operators_built_ahead_need_no_nvcc(tmp_path: Path) -> None:
    made = building(tmp_path)
    for op in made.deepspeed["ops"].values():
        op["built"] = True

    assert made.bad() == {}


def test_build_can_be_asked_for_and_refused(tmp_path: Path) -> None:
    asked, refused = Made(root=tmp_path / "a", builds=True), building(tmp_path / "b", builds=False)

    assert asked.look("toolkit.nvcc-matches-torch").status == "problem"
    assert refused.look("toolkit.nvcc-matches-torch").status == "ok"


def test_several_toolkits_are_chosen_by_several_variables(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("12.4"))
    made.environ["CUDA_HOME"] = made.toolkit("11.8")

    found = made.look("toolkit.side-by-side")

    assert found.status == "problem"
    assert found.evidence["chosen"] == {"PATH": "12.4", "CUDA_HOME": "11.8", "LD_LIBRARY_PATH": "12.4"}
    assert found.fix[0] == "export CUDA_HOME=/usr/local/cuda-12.4"


def test_several_toolkits_in_agreement_are_fine(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.toolkit("11.8")
    made.put_first(made.toolkit("12.4"))

    assert made.look("toolkit.side-by-side").status == "ok"


def test_a_link_is_no_second_toolkit(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("12.4"))
    made.link("/usr/local/cuda-12", "/usr/local/cuda-12.4")
    made.link("/usr/local/cuda", "/etc/alternatives/cuda")
    made.link("/etc/alternatives/cuda", "/usr/local/cuda-12.4")

    assert made.look("toolkit.side-by-side").status == "not-applicable"


def test_nvcc_outside_its_toolkit_hides_the_headers(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.link("/usr/local/bin/nvcc", f"{made.toolkit('12.4')}/bin/nvcc")

    found = made.look("toolkit.headers")

    assert found.status == "problem"
    assert found.what == "builds take /usr/local for the toolkit (by PATH), and it has no include/cuda_runtime.h"
    assert found.fix[0] == "export CUDA_HOME=/usr/local/cuda-12.4"


def test_headers_of_an_nvcc_that_tells_no_release(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.file("/home/me/bin/nvcc")
    made.environ["PATH"] = "/home/me/bin"

    found = made.look("toolkit.headers")

    assert found.status == "problem"
    assert found.fix == ("sudo apt-get install cuda-toolkit",)


def test_headers_where_conda_puts_them_are_fine(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.environ["CUDA_HOME"] = made.toolkit("12.4", at="/opt/conda")
    (tmp_path / "opt/conda/include/cuda_runtime.h").unlink()
    made.file("/opt/conda/targets/x86_64-linux/include/cuda_runtime.h")

    assert made.look("toolkit.headers").status == "ok"


def test_cuda_home_that_is_missing(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("12.4"))
    made.environ["CUDA_HOME"] = "/usr/local/cuda-12.1"

    found = made.look("toolkit.cuda-home")

    assert (found.status, found.what) == ("problem", "CUDA_HOME=/usr/local/cuda-12.1 does not exist")
    assert found.fix[0] == "export CUDA_HOME=/usr/local/cuda-12.4"


def test_cuda_home_without_a_compiler_of_a_laptop_is_a_warning(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.folder("/usr/local/cuda/lib64")
    made.environ["CUDA_HOME"] = "/usr/local/cuda"

    found = made.look("toolkit.cuda-home")

    assert (found.status, found.fix) == ("warning", ("unset CUDA_HOME",))


def test_lib64_that_is_missing_beside_lib(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.environ["CUDA_HOME"] = made.toolkit("12.4", lib="lib")

    found = made.look("toolkit.libraries")

    assert found.status == "warning"  # torch's builds look in lib too
    assert found.what.startswith("/usr/local/cuda-12.4/lib64 does not exist")
    assert found.fix[0] == "sudo ln -s /usr/local/cuda-12.4/lib /usr/local/cuda-12.4/lib64"


def test_lib64_that_is_missing_beside_other_folders(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.environ["CUDA_HOME"] = made.toolkit("12.4", lib="targets/x86_64-linux/lib")

    found = made.look("toolkit.libraries")

    assert found.status == "problem"
    assert found.fix[0] == "sudo ln -s /usr/local/cuda-12.4/targets/x86_64-linux/lib /usr/local/cuda-12.4/lib64"


def test_debian_s_toolkit_in_the_system_s_folders_is_fine(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.toolkit("12.4", at="/usr", lib="lib/x86_64-linux-gnu")

    assert made.bad() == {"toolkit.deepspeed-ops": "warning"}


def test_lib64_without_libcudart(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.environ["CUDA_HOME"] = made.toolkit("12.4", lib="")
    made.folder("/usr/local/cuda-12.4/lib64")

    found = made.look("toolkit.libraries")

    assert found.status == "problem"
    assert "cuda-cudart-dev-12-4" in found.fix[0]


def test_lib64_that_is_a_link_is_fine(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.environ["CUDA_HOME"] = made.toolkit("12.4", lib="lib")
    made.link("/usr/local/cuda-12.4/lib64", "lib")

    assert made.look("toolkit.libraries").status == "ok"


def test_folders_in_search_paths_that_are_missing(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.toolkit("12.4", lib="targets/x86_64-linux/lib")
    made.environ["PATH"] = "/usr/local/cuda-12.4/bin:/usr/bin"
    made.environ["LD_LIBRARY_PATH"] = "/usr/local/cuda-12.4/lib64:/opt/other/lib"

    found = made.look("toolkit.search-paths")

    assert found.status == "problem"
    assert found.what == "/usr/local/cuda-12.4/lib64 in LD_LIBRARY_PATH does not exist"
    assert found.fix[0] == "export LD_LIBRARY_PATH=/usr/local/cuda-12.4/targets/x86_64-linux/lib:/opt/other/lib"


def test_missing_folders_that_are_no_toolkit_s_are_not_mentioned(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.environ["PATH"] = "/root/.cargo/bin:/usr/bin"
    made.environ["LD_LIBRARY_PATH"] = "/opt/gone/lib"

    assert made.look("toolkit.search-paths").status == "not-applicable"


def test_libcudart_of_another_release_comes_first(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("12.4"))
    made.environ["LD_LIBRARY_PATH"] = f"{made.toolkit('11.8')}/lib64:{made.environ['LD_LIBRARY_PATH']}"

    found = made.look("toolkit.libcudart-first")

    assert found.status == "problem"
    assert "is 11.8 (/usr/local/cuda-11.8/lib64)" in found.what
    assert "the right one comes behind it" in found.what
    assert found.fix[-1].startswith("export LD_LIBRARY_PATH=/usr/local/cuda-12.4/lib64")


def test_torch_really_loads_an_older_library(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    old = made.toolkit("12.1", nvcc=False)
    made.environ["LD_LIBRARY_PATH"] = f"{old}/lib64"
    made.torch["loaded"] = [f"{old}/lib64/libcudart.so.12", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"]

    found = made.look("toolkit.libcudart-first")

    assert found.status == "problem"
    assert found.what == "torch loads libcudart.so.12 from /usr/local/cuda-12.1/lib64, not its own (CUDA 12.1 for 12.4)"
    assert found.fix == ("unset LD_LIBRARY_PATH",)


def test_torch_s_own_libraries_are_fine(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.environ["LD_LIBRARY_PATH"] = "/usr/lib/x86_64-linux-gnu"
    made.torch["loaded"] = ["/usr/lib/python3/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"]

    assert made.look("toolkit.libcudart-first").status == "ok"


@pytest.mark.parametrize(
    ("release", "gcc", "limit"),
    [("10.2", "9.4.0", 8), ("11.0", "10.2.1", 9), ("11.8", "12.2.0", 11), ("12.4", "14.2.0", 13)],
)
def test_host_compiler_is_too_new(tmp_path: Path, release: str, gcc: str, limit: int) -> None:
    made = building(tmp_path, cuda=release)
    made.put_first(made.toolkit(release))
    made.gcc(gcc)

    found = made.look("toolkit.host-compiler")

    assert found.status == "problem"
    assert found.what == f"gcc {gcc} (/usr/bin/gcc) is too new for CUDA {release}, which takes up to {limit}"
    assert found.fix[0] == f"sudo apt-get install gcc-{limit} g++-{limit}"


def test_an_older_compiler_that_is_installed_is_linked(tmp_path: Path) -> None:
    """The guide's case: gcc-9 where CUDA 10.2 takes an older one, which is installed and not used."""
    made = building(tmp_path, cuda="10.2")
    made.put_first(made.toolkit("10.2", patch="89"))
    made.gcc("9.4.0")
    made.gcc("7.5.0", "gcc-7")

    found = made.look("toolkit.host-compiler")

    assert found.fix == (
        "sudo ln -s /usr/bin/gcc-7 /usr/local/cuda-10.2/bin/gcc",
        "sudo ln -s /usr/bin/g++-7 /usr/local/cuda-10.2/bin/g++",
        "export CC=/usr/bin/gcc-7 CXX=/usr/bin/g++-7 NVCC_CCBIN=/usr/bin/g++-7  # torch looks here",
    )


@pytest.mark.parametrize("how", ["link", "NVCC_CCBIN"])
def test_an_older_compiler_that_is_chosen_is_fine(tmp_path: Path, how: str) -> None:
    made = building(tmp_path, cuda="10.2")
    made.put_first(made.toolkit("10.2", patch="89"))
    made.gcc("9.4.0")
    made.gcc("7.5.0", "gcc-7")
    made.gcc("7.5.0", "g++-7")
    if how == "link":
        made.link("/usr/local/cuda-10.2/bin/gcc", "/usr/bin/gcc-7")
    else:
        made.environ["NVCC_CCBIN"] = "/usr/bin/g++-7"

    assert made.look("toolkit.host-compiler").status == "ok"


def test_torch_looks_at_a_newer_compiler_than_nvcc_takes(tmp_path: Path) -> None:
    made = building(tmp_path, cuda="11.8")
    made.put_first(made.toolkit("11.8"))
    made.gcc("13.2.0")
    made.gcc("13.2.0", "g++")
    made.gcc("11.4.0", "gcc-11")
    made.link("/usr/local/cuda-11.8/bin/gcc", "/usr/bin/gcc-11")

    found = made.look("toolkit.host-compiler")

    assert found.status == "warning"
    assert "torch's builds look at /usr/bin/g++, gcc 13.2.0" in found.what


def test_the_compiler_is_judged_for_the_toolkit_that_has_to_be_chosen(tmp_path: Path) -> None:
    made = building(tmp_path, cuda="10.2")
    made.gcc("9.4.0")
    made.toolkit("10.2", patch="89")
    made.put_first(made.toolkit("11.0"))  # which would take gcc 9

    assert "too new for CUDA 10.2" in made.look("toolkit.host-compiler").what


def test_the_toolkit_s_own_header_is_believed(tmp_path: Path) -> None:
    made = building(tmp_path, cuda="13.5")
    made.put_first(made.toolkit("13.5"))
    made.gcc("17.1.0")
    made.file(
        "/usr/local/cuda-13.5/include/crt/host_config.h",
        "#if __GNUC__ > 16\n#error -- unsupported GNU version!\n#endif\n",
    )

    assert made.look("toolkit.host-compiler").evidence["newest"] == 16


def test_a_release_that_nobody_wrote_down_cannot_be_told(tmp_path: Path) -> None:
    made = building(tmp_path, cuda="13.5")
    made.put_first(made.toolkit("13.5"))

    assert made.look("toolkit.host-compiler").status == "cannot-tell"


def test_new_compiler_of_a_laptop_is_nothing(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.put_first(made.toolkit("12.4"))
    made.gcc("14.2.0")

    assert made.bad() == {}


def test_ninja_is_missing(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.put_first(made.toolkit("12.4"))
    (tmp_path / "usr/bin/ninja").unlink()

    found = made.look("toolkit.ninja")

    assert (found.status, found.fix) == ("problem", ("pip install ninja",))


def test_libaio_is_missing_where_it_was_asked_for(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.deepspeed["ops"]["async_io"]["compatible"] = False
    assert made.look("toolkit.libaio").status == "ok"

    made.environ["DS_BUILD_AIO"] = "1"

    found = made.look("toolkit.libaio")
    assert found.status == "problem"
    assert found.fix[0].startswith("sudo apt-get install libaio-dev")


def test_deepspeed_s_build_command_is_written_out(tmp_path: Path) -> None:
    made = building(tmp_path, capabilities=((6, 1), (8, 6)))
    made.put_first(made.toolkit("12.4"))

    found = made.look("toolkit.deepspeed-ops")

    assert found.status == "warning"
    assert found.fix[1].startswith('TORCH_CUDA_ARCH_LIST="6.1;8.6" DS_BUILD_CPU_ADAM=1 ')
    assert found.fix[1].endswith("DS_BUILD_UTILS=1 DS_BUILD_AIO=1 \\")
    assert found.fix[2].startswith("    pip install . ")
    assert "bdist_wheel" in found.fix[-1]


def test_deepspeed_s_operators_that_cannot_be_built(tmp_path: Path) -> None:
    no = {
        "built": False,
        "compatible": False,
        "variable": "DS_BUILD_CPU_ADAM",
        "why": "\x1b[93m[WARNING]\x1b[0m  please install nvcc",
    }
    made = building(tmp_path)
    made.use_deepspeed(cpu_adam=no)

    found = made.look("toolkit.deepspeed-ops")

    assert (found.status, found.why) == ("problem", "please install nvcc")


def test_deepspeed_that_cannot_be_asked(tmp_path: Path) -> None:
    made = building(tmp_path)
    made.deepspeed = {"status": "failed", "error": "ImportError: no such thing"}

    assert made.look("toolkit.deepspeed-ops").status == "cannot-tell"


@pytest.mark.parametrize(
    ("capability", "archs", "status"),
    [
        ((8, 6), ("sm_80",), "ok"),  # the same major number, a lower minor one
        ((8, 6), ARCHS, "ok"),
        ((8, 0), ("sm_70", "sm_86"), "problem"),  # 8.6 code does not run on 8.0
        ((12, 0), ARCHS, "problem"),  # a Blackwell card with a wheel from before it
        ((12, 0), (*ARCHS, "compute_90"), "warning"),  # by intermediate code
        ((12, 0), ("sm_90a",), "problem"),  # a letter: this device only
        ((9, 0), ("sm_90a",), "ok"),
        ((10, 3), ("sm_100f",), "ok"),  # of the family
        ((3, 7), ARCHS, "problem"),
    ],
)  # fmt: skip
def test_architectures_of_torch(
    tmp_path: Path, capability: tuple[int, int], archs: tuple[str, ...], status: str
) -> None:
    made = Made(root=tmp_path, capabilities=(capability,), arch_list=archs)

    assert made.look("toolkit.device-architecture").status == status


def test_new_card_is_told_which_wheel(tmp_path: Path) -> None:
    made = Made(root=tmp_path, capabilities=((8, 6), (12, 0)))

    found = made.look("toolkit.device-architecture")

    assert "compute capability 12.0" in found.what
    assert found.fix[0].endswith("/whl/cu128")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("8.6", "ok"), ("8.0", "ok"), ("7.0;8.6", "ok"), ("8.0 8.6+PTX", "ok"), ("Ampere", "ok"), ("7.5+PTX", "ok"),
        ("7.0;7.5", "problem"), ("9.0", "problem"), ("8,6", "problem"), ("Amper", "problem"), ("", "not-applicable"),
    ],
)  # fmt: skip
def test_torch_cuda_arch_list(tmp_path: Path, text: str, status: str) -> None:
    made = Made(root=tmp_path)
    made.environ["TORCH_CUDA_ARCH_LIST"] = text

    found = made.look("toolkit.torch-cuda-arch-list")

    assert found.status == status
    if status == "problem":
        assert found.fix == ('export TORCH_CUDA_ARCH_LIST="8.6"',)


@pytest.mark.parametrize(
    ("cuda", "driver", "status"),
    [
        ("12.4", "550.54.14", "ok"),
        ("12.4", "525.60.13", "ok"),  # minor version compatibility
        ("12.4", "520.61.05", "problem"),
        ("11.8", "450.80.02", "ok"),
        ("11.0", "440.33", "problem"),
        ("10.2", "440.33", "ok"),
        ("10.2", "418.39", "problem"),
        ("13.0", "575.51.03", "problem"),
        ("13.0", "580.65.06", "ok"),
        ("14.0", "590.1", "cannot-tell"),
    ],
)
def test_driver_and_runtime(tmp_path: Path, cuda: str, driver: str, status: str) -> None:
    made = Made(root=tmp_path, cuda=cuda, driver=driver)
    made.torch["devices"] = []

    assert made.look("toolkit.driver").status == status


def test_old_driver_says_which_cuda_it_runs(tmp_path: Path) -> None:
    made = Made(root=tmp_path, cuda="12.4", driver="520.61.05")
    made.torch["devices"] = []

    found = made.look("toolkit.driver")

    assert found.why == "this driver runs CUDA up to 11.8"
    assert found.fix[1].endswith("/whl/cu118")


def test_old_driver_with_forward_compatibility_is_fine(tmp_path: Path) -> None:
    assert Made(root=tmp_path, cuda="12.4", driver="470.57.02").look("toolkit.driver").status == "ok"


def test_cpu_build_on_a_machine_with_a_gpu(tmp_path: Path) -> None:
    made = Made(root=tmp_path, cuda=None)

    found = made.look("toolkit.gpu-visible")

    assert found.status == "problem"
    assert found.what == "1 on this machine, but torch 2.6.0+cpu is a build without CUDA"
    assert found.fix[0].endswith("/whl/cu126")


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_cpu_build_with_hidden_gpus_is_meant(tmp_path: Path, hidden: str) -> None:
    made = Made(root=tmp_path, cuda=None)
    made.environ["CUDA_VISIBLE_DEVICES"] = hidden

    assert made.bad() == {}


def test_cpu_build_on_a_laptop_whose_card_has_no_driver_is_a_warning(tmp_path: Path) -> None:
    made = Made(root=tmp_path, cuda=None, driver="")
    made.file("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n")
    made.file("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n")

    assert made.bad() == {"toolkit.gpu-visible": "warning"}


def test_a_laptop_without_gpu_is_healthy_with_any_torch(tmp_path: Path) -> None:
    for name, cuda in (("cpu", None), ("cuda", "12.4")):
        made = Made(root=tmp_path / name, cuda=cuda, driver="", capabilities=())

        assert made.bad() == {}, name


def test_torch_that_sees_no_gpu(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.torch |= {"devices": [], "cuda_error": "RuntimeError: CUDA unknown error"}

    found = made.look("toolkit.gpu-visible")

    assert (found.status, found.why) == ("problem", "RuntimeError: CUDA unknown error")


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"status": "missing", "error": "ModuleNotFoundError: No module named 'torch'"}, "cannot-tell"),
        ({"status": "failed", "error": "OSError: libcudnn.so.9: cannot open shared object file"}, "problem"),
        ({"status": "crashed", "error": "Segmentation fault", "ended": "signal 11"}, "problem"),
        ({"status": "timeout", "seconds": 60.0, "error": "no answer within 60 s"}, "problem"),
    ],
)
def test_torch_that_cannot_be_imported(tmp_path: Path, facts: dict[str, object], status: str) -> None:
    made = Made(root=tmp_path, driver="")
    made.torch = {**dict.fromkeys(made._torch()), **facts}

    assert made.look("toolkit.torch").status == status


def test_torch_without_nccl(tmp_path: Path) -> None:
    made = Made(root=tmp_path, capabilities=((8, 6), (8, 6)))
    made.torch["nccl"] = ""

    assert made.look("toolkit.nccl").status == "problem"


def test_another_nccl_is_loaded(tmp_path: Path) -> None:
    made = Made(root=tmp_path)
    made.torch["loaded"] = ["/usr/lib/x86_64-linux-gnu/libnccl.so.2"]

    assert made.look("toolkit.nccl").status == "warning"
