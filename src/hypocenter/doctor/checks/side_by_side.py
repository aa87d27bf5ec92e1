"""Several CUDA toolkits are installed, and PATH, CUDA_HOME and LD_LIBRARY_PATH choose different ones.

What it means
    The compiler of one release and the libraries of another meet in one build or one process. Installers usually point
    /usr/local/cuda and PATH to the newest.

How it is decided
    Toolkits are the folders cuda and cuda-X.Y below /usr/local, /opt and /usr/lib, and what the variables name. The
    first nvcc on PATH, CUDA_HOME and the first folder of LD_LIBRARY_PATH that belongs to a toolkit must be of one
    release. It is a problem where extensions are built, else a warning; one toolkit, or agreement, is fine.

What to do
    Put one toolkit, that of torch's release, first in all three: the lines are printed. Earlier entries win.

When it is wrong
    When a library of the other toolkit is wanted for itself.
"""

from __future__ import annotations

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, graver, not_applicable, ok
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.side-by-side", title="toolkits", order=34)
def side_by_side(machine: Machine) -> Verdict:
    """Whether everything chooses the same toolkit."""
    found = cuda.toolkits(machine)
    if len(found) < 2:
        only = f"only {found[0].folder}" if found else "no CUDA toolkit is installed"
        return not_applicable(only if found else f"{only}; torch brings its own libraries")
    names = ", ".join(one.folder for one in found)
    chosen = choices(machine)
    facts = {"toolkits": {one.folder: one.release for one in found}, "chosen": chosen}
    if len(set(chosen.values())) < 2:
        by = f"; {' and '.join(chosen)} choose {next(iter(chosen.values()))}" if chosen else ""
        return ok(
            f"{len(found)} toolkits: {names}{by.replace('choose', 'chooses') if len(chosen) == 1 else by}", **facts
        )
    right = cuda.matching(machine) or found[0]
    told = ", ".join(f"{name} chooses {release}" for name, release in chosen.items())
    return graver(
        bool(building.reason(machine)), f"{len(found)} toolkits ({names}), and {told}",
        "the compiler of one release and the libraries of another meet in one build",
        cuda.exports_of(machine, right), **facts,
    )  # fmt: skip


def choices(machine: Machine) -> dict[str, str]:
    """Return the release that each variable leads to, for those that lead to one."""
    found: dict[str, str] = {}
    first = next(cuda.nvccs(machine), None)
    if first is not None and (first.release or cuda.told(machine, first.path.rsplit("/bin/", 1)[0])):
        found["PATH"] = first.release or cuda.told(machine, first.path.rsplit("/bin/", 1)[0])
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if machine.environ.get(name) and (release := cuda.told(machine, machine.environ[name].rstrip("/"))):
            found[name] = release
            break
    for folder in machine.search("LD_LIBRARY_PATH"):
        if release := cuda.cudart_release(machine, folder.rstrip("/")):
            found["LD_LIBRARY_PATH"] = release
            break
    return found
