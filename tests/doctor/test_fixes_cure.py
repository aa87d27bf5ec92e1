"""The lines that are printed cure: pasted into a real shell, in their order, they leave no problem behind."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from guide_machine import guide_machine
from made_machine import Made

from hypocenter.doctor.answering import answer

LINK = re.compile(r"sudo ln -s (\S+) (\S+)")


def paste(made: Made) -> None:
    """Type all lines of all fixes as the screen shows them; links are made below the machine's root."""
    lines: list[str] = []
    for check in answer(made.all()).checks:
        if check.status in ("problem", "warning"):
            lines += [line for line in check.fix if line not in lines]
    for link in filter(None, map(LINK.fullmatch, lines)):
        made.link(link[2], link[1])
    typed = [line for line in lines if line.startswith(("export ", "unset "))]
    done = subprocess.run(
        ["/bin/bash", "--norc", "-euc", "\n".join([*typed, "exec /usr/bin/env -0"])],
        env=made.environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    made.environ.clear()
    made.environ.update(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


def building(root: Path) -> Made:
    """A machine that builds DeepSpeed's operators for torch with CUDA 12.4."""
    made = Made(root=root)
    made.use_deepspeed()
    made.gcc("11.4.0")
    made.program("ninja", "1.11.1\n")
    return made


def guide(root: Path) -> Made:
    made = guide_machine(root)
    made.gcc("7.5.0", "g++-7")
    return made


def home_is_missing(root: Path) -> Made:
    made = building(root)
    made.toolkit("12.4")
    made.environ["CUDA_HOME"] = "/usr/local/cuda-12.1"
    return made


def lib64_is_missing(root: Path) -> Made:
    made = building(root)
    made.environ["CUDA_HOME"] = made.toolkit("12.4", lib="lib")
    made.environ["LD_LIBRARY_PATH"] = "/usr/local/cuda-12.4/lib64"
    return made


def three_toolkits(root: Path) -> Made:
    made = building(root)
    made.toolkit("12.4")
    made.put_first(made.toolkit("11.8"))
    made.environ["CUDA_HOME"] = made.toolkit("13.0")
    return made


def older_library_comes_first(root: Path) -> Made:
    made = Made(root=root)
    made.environ["LD_LIBRARY_PATH"] = f"{made.toolkit('12.1', nvcc=False)}/lib64"
    return made


def folder_with_a_space(root: Path) -> Made:
    made = building(root)
    made.environ["CUDA_PATH"] = made.toolkit("12.4", at="/opt/my toolkits/cuda-12.4")
    made.put_first(made.toolkit("11.8"))
    return made


def nvcc_is_a_script(root: Path) -> Made:
    made = building(root)
    made.toolkit("12.4")
    made.file("/usr/local/bin/nvcc", "Cuda compilation tools, release 12.4, V12.4.131\n")
    return made


def one_card_is_left_out(root: Path) -> Made:
    made = building(root)
    made.capabilities = ((6, 1), (8, 6))
    made.arch_list = ("sm_61", "sm_86")
    made.environ["CUDA_HOME"] = made.toolkit("12.4")
    made.environ["TORCH_CUDA_ARCH_LIST"] = "8.6"
    return made


@pytest.mark.parametrize(
    "fault",
    [
        guide,
        home_is_missing,
        lib64_is_missing,
        three_toolkits,
        older_library_comes_first,
        folder_with_a_space,
        one_card_is_left_out,
        nvcc_is_a_script,
    ],
)
def test_pasted_lines_leave_no_problem(tmp_path: Path, fault: Callable[[Path], Made]) -> None:
    made = fault(tmp_path)
    assert made.bad()

    paste(made)

    assert set(made.bad()) <= {"toolkit.deepspeed-ops"}, made.environ  # which is no fault of the toolkits


def test_pasting_twice_changes_nothing_more(tmp_path: Path) -> None:
    made = guide(tmp_path)
    paste(made)
    settled = dict(made.environ)

    paste(made)

    assert made.environ == settled
