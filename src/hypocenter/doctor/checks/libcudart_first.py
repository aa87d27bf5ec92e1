"""LD_LIBRARY_PATH puts the CUDA libraries of another release before torch's own.

What it means
    torch brings libcudart, libcublas, libcudnn and libnccl. Folders in LD_LIBRARY_PATH come before them: with an older
    libcublas or libcudnn of the same major number torch runs with code that it was not tested with, computes other
    numbers, or stops with `undefined symbol` or CUDNN_STATUS_NOT_INITIALIZED.

How it is decided
    A child process imports torch, and the libraries it has really loaded are listed (/proc/self/maps). One that lies
    outside torch's own packages, in a folder of LD_LIBRARY_PATH, is named. If torch could not be asked, the first
    folder of LD_LIBRARY_PATH with a libcudart decides, by its release.

What to do
    Take the folder out of LD_LIBRARY_PATH for training, or put the toolkit of torch's release first.

When it is wrong
    When a newer library was put there on purpose; then it is a setting that has to be the same on every rank.
"""

from __future__ import annotations

import shlex

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, graver, not_applicable, ok
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, major, version_numbers


@check("toolkit.libcudart-first", title="LD_LIBRARY_PATH", order=40)
def libcudart_first(machine: Machine) -> Verdict:
    """Whether something in LD_LIBRARY_PATH comes before torch's own libraries."""
    want = cuda.wanted(machine)
    folders = [folder.rstrip("/") for folder in machine.search("LD_LIBRARY_PATH")]
    if not want or not folders:
        return not_applicable("LD_LIBRARY_PATH is not set" if want else "torch was built without CUDA")
    strangers = [path for path in machine.torch.get("loaded") or [] if _from(str(path), folders, machine)]
    if strangers:
        return _loaded(machine, [str(path) for path in strangers], folders)
    first = next((folder for folder in folders if cuda.cudart_release(machine, folder)), "")
    have = cuda.cudart_release(machine, first) if first else ""
    if not first or have == want:
        return ok(f"the first libcudart in LD_LIBRARY_PATH is {have} ({first})" if first else
                  "LD_LIBRARY_PATH names no folder with a libcudart")  # fmt: skip
    right = cuda.matching(machine, with_nvcc=False)
    later = right is not None and any(cuda.cudart_release(machine, folder) == want for folder in folders)
    is_problem = bool(building.reason(machine)) and major(have) != major(want)
    fits = right is not None and right.release == want
    return graver(
        is_problem,
        f"the first libcudart in LD_LIBRARY_PATH is {have} ({first}), torch was built for CUDA {want}"
        + ("; the right one comes behind it" if later else ""),
        "earlier entries win: an extension that is built or loaded here takes the other release",
        cuda.exports_of(machine, right)[1:] if fits and right is not None else _without(folders, [first]),
        first=have, torch=want,
    )  # fmt: skip


def _loaded(machine: Machine, paths: list[str], folders: list[str]) -> Verdict:
    theirs = [folder for folder in folders if any(path.startswith(f"{folder}/") for path in paths)] or folders
    names = ", ".join(sorted({path.rsplit("/", 1)[-1] for path in paths}))
    want = cuda.wanted(machine)
    cudart = next((path for path in paths if "libcudart" in path), "")
    have = cuda.cudart_release(machine, cudart.rsplit("/", 1)[0]) if cudart else ""
    older = bool(have) and version_numbers(have) < version_numbers(want)
    what = f"torch loads {names} from {theirs[0]}, not its own" + (f" (CUDA {have} for {want})" if have else "")
    return graver(
        older, what, "LD_LIBRARY_PATH comes before the libraries that torch was tested with",
        _without(folders, theirs), loaded=paths,
    )  # fmt: skip


def _from(path: str, folders: list[str], machine: Machine) -> bool:
    name = path.rsplit("/", 1)[-1]
    if name.startswith(("libcuda.so", "libhccl", "libascendcl")):  # the driver's, and Ascend's
        return False
    own = str(machine.torch.get("folder") or "").rsplit("/", 1)[0]
    return not (own and path.startswith(f"{own}/")) and any(path.startswith(f"{folder}/") for folder in folders)


def _without(folders: list[str], gone: list[str]) -> tuple[str, ...]:
    kept = ":".join(folder for folder in folders if folder not in gone)
    return (f"export LD_LIBRARY_PATH={shlex.quote(kept)}" if kept else "unset LD_LIBRARY_PATH",)
