"""The nvcc that builds extensions is of another CUDA release than torch.

What it means
    torch brings its own CUDA libraries and needs no nvcc to run. Extensions that are compiled here (DeepSpeed's
    operators, apex, flash-attn) are linked with both: with another major release torch refuses to build, `The detected
    CUDA version (11.0) mismatches the version that was used to compile PyTorch (10.2)`.

How it is decided
    The toolkit is taken as torch.utils.cpp_extension takes it: CUDA_HOME, CUDA_PATH, nvcc on PATH, /usr/local/cuda; its
    nvcc is asked for its release. Another major number is a problem where extensions are built (DeepSpeed is installed
    with operators that are not built ahead and there is a GPU, variables such as DS_BUILD_OPS or TORCH_CUDA_ARCH_LIST
    are set, or `--build` is given), else a warning. Another minor number is a warning. No nvcc at all is a problem only
    where extensions are built.

What to do
    If the right release is installed beside it, put it first in PATH and LD_LIBRARY_PATH: the lines are printed. If
    not, install it, or a torch that was built for what is there.

When it is wrong
    When extensions are installed as wheels: give --no-build.
"""

from __future__ import annotations

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, cannot_tell, graver, not_applicable, ok, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, major


@check("toolkit.nvcc-matches-torch", title="nvcc", order=32)
def nvcc_matches_torch(machine: Machine) -> Verdict:
    """Whether what is built here fits torch."""
    want, builds = cuda.wanted(machine), building.reason(machine)
    if not want:
        return not_applicable("torch was built without CUDA")
    folder, chosen_by = cuda.home(machine)
    path = f"{folder}/bin/nvcc"
    if not folder or not machine.is_file(path):
        return _none(machine, want, builds)
    have = cuda.nvcc_release(machine, path) or cuda.told(machine, folder)
    if not have:
        return cannot_tell(f"{path} does not say its release", f"`{path} --version` gave no answer")
    if have == want:
        return ok(f"nvcc {have} ({path}) is torch's CUDA {want}", nvcc=have, torch=want, path=path)
    return _other(machine, path, have, chosen_by)


def _none(machine: Machine, want: str, builds: str) -> Verdict:
    other = cuda.matching(machine)
    if not builds:
        return ok("no nvcc is found, and none is needed: torch brings its own CUDA, and no extensions are built here")
    return graver(
        True, f"no nvcc is found, and extensions are built here ({builds})",
        f"they need the compiler of CUDA {want}, which torch was built for",
        cuda.exports_of(machine, other) if other is not None else cuda.install(machine),
    )  # fmt: skip


def _other(machine: Machine, path: str, have: str, chosen_by: str) -> Verdict:
    want, builds, right = cuda.wanted(machine), building.reason(machine), cuda.matching(machine)
    what = f"nvcc is {have} ({path}, by {chosen_by}), torch was built for CUDA {want}"
    fits = right is not None and right.release == want
    fix = cuda.exports_of(machine, right) if right is not None and (fits or major(have) != major(want)) else ()
    facts = {"nvcc": have, "torch": want, "path": path, "chosen_by": chosen_by, "builds": builds}
    if major(have) == major(want):
        return warning(
            what, "torch builds extensions with it, with a warning: minor releases of CUDA are compatible", fix, **facts
        )
    why = f"extensions are built here ({builds}), and torch refuses another major release"
    if not builds:
        why = "torch itself does not use it; building an extension would fail"
    return graver(bool(builds), what, why, fix or cuda.install(machine), **facts)
