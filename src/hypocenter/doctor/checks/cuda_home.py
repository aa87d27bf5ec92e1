"""CUDA_HOME points to a folder that is missing, or has no compiler.

What it means
    Builds of extensions take the toolkit from CUDA_HOME (or CUDA_PATH), and only then from PATH. They fail at once when
    there is nothing: `No such file or directory: '/usr/local/cuda-11.0/bin/nvcc'`.

How it is decided
    The folder and `bin/nvcc` below it must exist. Whether its release fits torch is judged by
    toolkit.nvcc-matches-torch. Where no extensions are built here it is a warning.

What to do
    Point it to the toolkit of torch's release, or unset it.

When it is wrong
    When the folder is mounted later than now, on the nodes of the job for instance.
"""

from __future__ import annotations

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, graver, not_applicable, ok
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.cuda-home", title="CUDA_HOME", order=30)
def cuda_home(machine: Machine) -> Verdict:
    """Whether CUDA_HOME leads to a compiler."""
    name = next((name for name in ("CUDA_HOME", "CUDA_PATH") if machine.environ.get(name)), "")
    if not name:
        return not_applicable("CUDA_HOME is not set")
    folder = machine.environ[name].rstrip("/") or "/"
    if machine.is_file(f"{folder}/bin/nvcc"):
        return ok(f"{name}={folder} has a compiler", release=cuda.told(machine, folder))
    what = f"{name}={folder} " + ("has no bin/nvcc" if machine.is_dir(folder) else "does not exist")
    other = cuda.matching(machine)
    fix = cuda.exports_of(machine, other) if other is not None else (f"unset {name}",)
    return graver(bool(building.reason(machine)), what, "builds of extensions look there first, and fail", fix)
