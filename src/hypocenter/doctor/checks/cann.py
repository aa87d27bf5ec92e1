"""CANN is missing, is not set up in this shell, or several are mixed.

What it means
    Without CANN's variables neither torch_npu nor MindSpore finds its libraries: `libhccl.so: cannot open shared object
    file`, or `ASCEND_HOME_PATH` is empty. With two releases in one environment, kernels of one meet the runtime of the
    other.

How it is decided
    Toolkits are looked for below /usr/local/Ascend, /opt/Ascend and ~/Ascend; their release is read from
    ascend_toolkit_install.info or version.cfg. ASCEND_HOME_PATH (or ASCEND_TOOLKIT_HOME) must name one that exists, and
    LD_LIBRARY_PATH no other.

What to do
    Source the set_env.sh of the release that is meant, in the script that starts the job.

When it is wrong
    When the driver's container runtime mounts the toolkit only in the job.
"""

from __future__ import annotations

from hypocenter.doctor import ascend, hardware
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.cann", title="CANN", order=60)
def cann(machine: Machine) -> Verdict:
    """Whether the environment chooses one CANN that exists."""
    if not hardware.uses_ascend(machine):
        return not_applicable("no Ascend NPU and no Ascend software on this machine")
    found = ascend.installed(machine)
    named = [name for name in ascend.VARIABLES if machine.environ.get(name)]
    if not named:
        if not found:
            return _absent(machine)
        names = ", ".join(one.folder for one in found)
        return problem(
            f"CANN is installed ({names}), but ASCEND_HOME_PATH is not set",
            "torch_npu and MindSpore do not find its libraries",
            (ascend.set_env(machine, found[0]),),
        )
    folder = machine.environ[named[0]].rstrip("/")
    if not machine.is_dir(folder):
        fix = (ascend.set_env(machine, found[0] if found else None),)
        return problem(f"{named[0]}={folder} does not exist", "nothing of CANN will be found", fix)
    version = ascend.told(machine, folder)
    others = [one for one in found if one.version != version and _is_searched(machine, one.folder)]
    if others:
        return problem(
            f"{named[0]} chooses CANN {version}, and LD_LIBRARY_PATH also has CANN {others[0].version}",
            "kernels of one release meet the runtime of the other; start from a shell that sourced only one",
            ("unset LD_LIBRARY_PATH", ascend.set_env(machine, ascend.Cann(folder=folder, version=version))),
        )
    if not version:
        return cannot_tell(
            f"{named[0]}={folder} does not say its release", "no version.cfg or ascend_toolkit_install.info"
        )
    beside = f"; {len(found)} are installed side by side" if len(found) > 1 else ""
    return ok(f"CANN {version} ({folder}){beside}", cann=version, installed={one.folder: one.version for one in found})


def _absent(machine: Machine) -> Verdict:
    n_cards = hardware.npu_devices(machine)
    if not n_cards:
        return cannot_tell("no CANN is installed", "torch_npu or MindSpore is, and there is no NPU on this machine")
    return problem(
        f"{n_cards} NPU on this machine, and no CANN is installed",
        "nothing can run on them",
        (
            "npu-smi info  # the card and its driver",
            "# then install the toolkit package: https://www.hiascend.com/software/cann",
        ),
    )


def _is_searched(machine: Machine, folder: str) -> bool:
    real = machine.resolved(folder)
    return any(f"{machine.resolved(entry)}/".startswith(f"{real}/") for entry in machine.search("LD_LIBRARY_PATH"))
