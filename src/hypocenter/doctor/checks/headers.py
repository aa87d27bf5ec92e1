"""The folder that builds take for the toolkit has no CUDA headers.

What it means
    Builds find the toolkit as the folder above the `bin` that has nvcc. Where nvcc on PATH is a link or a small script
    outside its toolkit (/usr/local/bin/nvcc, alternatives, module systems), that folder is another: `fatal error:
    cuda_runtime.h: No such file or directory`.

How it is decided
    As torch.utils.cpp_extension does it: CUDA_HOME, CUDA_PATH, else two folders up from the first nvcc on PATH, links
    not followed. include/cuda_runtime.h, or targets/<arch>/include/cuda_runtime.h, must be below it. It is a problem
    where extensions are built here, else not mentioned.

What to do
    Set CUDA_HOME to the toolkit itself: the lines are printed.

When it is wrong
    When the compiler finds the headers by another way, as CPATH.
"""

from __future__ import annotations

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.headers", title="headers", order=37)
def headers(machine: Machine) -> Verdict:
    """Whether the toolkit that builds take has its headers."""
    folder, chosen_by = cuda.home(machine)
    builds = building.reason(machine)
    if not builds or not folder or not machine.is_file(f"{folder}/bin/nvcc"):
        return not_applicable("no CUDA extensions are built here" if not builds else "no nvcc is in use")
    if found := cuda.headers(machine, folder):
        return ok(f"{found} has cuda_runtime.h", folder=found)
    have = cuda.nvcc_release(machine, f"{folder}/bin/nvcc")
    whole = [one for one in cuda.toolkits(machine) if one.has_nvcc and cuda.headers(machine, one.folder)]
    best = next((one for one in whole if one.release == have), cuda.matching(machine))
    fix = (
        cuda.exports_of(machine, best)
        if best is not None
        else (f"sudo apt-get install {'-'.join(['cuda-toolkit', *have.split('.')]).rstrip('-')}",)
    )
    return problem(
        f"builds take {folder} for the toolkit (by {chosen_by}), and it has no include/cuda_runtime.h",
        f"extensions are built here ({builds}), and nothing of CUDA will be found", fix, folder=folder,
    )  # fmt: skip
