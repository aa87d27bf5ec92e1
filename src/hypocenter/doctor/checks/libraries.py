"""A CUDA toolkit in use has no lib64 folder, or no libcudart in it.

What it means
    Extensions are linked with `-L$CUDA_HOME/lib64 -lcudart`: without the folder, `cannot find -lcudart`.

How it is decided
    For the toolkit that builds take (CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda), lib64 must hold
    libcudart.so. Libraries in lib are a warning: torch looks there too, other builds do not. Elsewhere, or nowhere, is
    a problem where extensions are built here, else a warning. The system's own folders need no -L.

What to do
    Make the link, or install the toolkit's libraries (package cuda-cudart-dev-<release>).

When it is wrong
    When the extension finds the library by another -L, as in a conda environment.
"""

from __future__ import annotations

import shlex

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, graver, not_applicable, ok
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine

SYSTEM = ("/usr", "/usr/local")


@check("toolkit.libraries", title="lib64", order=38)
def libraries(machine: Machine) -> Verdict:
    """Whether the toolkit that builds take has its libraries where they look for them."""
    folder, chosen_by = cuda.home(machine)
    if not cuda.wanted(machine) or not folder or not cuda.told(machine, folder):
        return not_applicable("no CUDA toolkit is in use")
    found = cuda.library_folder(machine, folder)
    if found == f"{folder}/lib64":
        return ok(f"{found} has libcudart", folder=found)
    if found and folder in SYSTEM:
        return ok(f"{found} has libcudart, where every linker looks", folder=found)
    is_there = machine.is_dir(f"{folder}/lib64")
    what = f"{folder}/lib64 {'has no libcudart' if is_there else 'does not exist'} (toolkit chosen by {chosen_by})"
    other = cuda.matching(machine)
    if found and not is_there:
        fix = (f"sudo ln -s {shlex.quote(found)} {shlex.quote(f'{folder}/lib64')}",
               f"export LD_LIBRARY_PATH={shlex.quote(found)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}")  # fmt: skip
    elif other is not None and other.folder != folder and cuda.library_folder(machine, other.folder):
        fix = cuda.exports_of(machine, other)
    else:
        name = cuda.told(machine, folder).replace(".", "-")
        fix = (f"sudo apt-get install cuda-cudart-dev-{name} cuda-libraries-dev-{name}",)
    is_problem = bool(building.reason(machine)) and found != f"{folder}/lib"
    return graver(is_problem, what, "linking an extension ends with: cannot find -lcudart", fix)
