"""A toolkit's folder in PATH or LD_LIBRARY_PATH does not exist.

What it means
    The line that put it there was written for another machine or another release; what it should have found is looked
    for in the next entries, and may be found in another toolkit.

How it is decided
    Entries of the two variables that name CUDA, NCCL or Ascend and are no folder. Other entries that are missing do no
    harm and are not mentioned. For LD_LIBRARY_PATH, a folder that exists under another name (lib for lib64) is named.

What to do
    Take the entry out, or put the folder that exists in its place.

When it is wrong
    When the folder is mounted later than now.
"""

from __future__ import annotations

import re
import shlex

from hypocenter.doctor import building, cuda
from hypocenter.doctor.answer import Verdict, graver, not_applicable, ok
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine

_OURS = re.compile(r"cuda|nvidia|nccl|cudnn|ascend|cann|hccl", re.IGNORECASE)
_RELEASE = re.compile(r"^(.*/cuda(?:-[\d.]+)?)/")


@check("toolkit.search-paths", title="search paths", order=28)
def search_paths(machine: Machine) -> Verdict:
    """Whether the toolkits' folders in the search paths exist."""
    ours = [(name, entry) for name in ("PATH", "LD_LIBRARY_PATH") for entry in machine.search(name)]
    ours = [(name, entry) for name, entry in ours if _OURS.search(entry)]
    if not ours:
        return not_applicable("no toolkit is named in PATH or LD_LIBRARY_PATH")
    missing = [(name, entry) for name, entry in ours if not machine.is_dir(entry)]
    if not missing:
        return ok(f"all {len(ours)} folders of toolkits in PATH and LD_LIBRARY_PATH exist" if len(ours) > 1 else
                  f"{ours[0][1]} in {ours[0][0]} exists")  # fmt: skip
    names = " and ".join(f"{entry} in {name}" for name, entry in missing)
    fix = [line for name, entry in missing for line in _without(machine, name, entry)]
    right = cuda.matching(machine)
    why = "what should be found there is looked for in the entries behind it"
    if right is not None and any("cuda" in entry.lower() for _, entry in missing):
        fix = [*fix, *cuda.exports_of(machine, right)]
    return graver(
        bool(building.reason(machine)), f"{names} {'does' if len(missing) == 1 else 'do'} not exist", why,
        list(dict.fromkeys(fix)), missing=[entry for _, entry in missing],
    )  # fmt: skip


def _without(machine: Machine, name: str, entry: str) -> list[str]:
    """Return the line that takes the entry out, or puts in what was meant."""
    kept: list[str] = []
    for one in machine.search(name):
        instead = one if one != entry else _meant(machine, one)
        kept += [instead] if instead and instead not in kept else []
    return [f"export {name}={shlex.quote(':'.join(kept))}"] if kept else [f"unset {name}"]


def _meant(machine: Machine, entry: str) -> str:
    toolkit = _RELEASE.match(f"{entry}/")
    return cuda.library_folder(machine, toolkit[1]) if toolkit and "lib" in entry.rsplit("/", 1)[-1] else ""
