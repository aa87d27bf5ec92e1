"""The NVIDIA driver is too old for the CUDA that torch was built for.

What it means
    torch's CUDA runtime asks the driver for a version that it does not have: `CUDA driver version is insufficient for
    CUDA runtime version`, or torch silently sees no device.

How it is decided
    Since CUDA 11 a driver runs every release of a major number from a least version on (450.80.02 for 11, 525.60.13 for
    12, 580 for 13); before, each release names its own. Below that it is a problem. Between that and the driver that
    came with the release it works, but code that is compiled by the driver (PTX) does not: said, and no more.

What to do
    Update the driver, or install a torch that was built for the older CUDA.

When it is wrong
    On data-centre cards with a forward-compatibility package (cuda-compat): if torch sees its devices all is well.
"""

from __future__ import annotations

from hypocenter.doctor import cuda, hardware
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, major, version_numbers, version_table


@check("toolkit.driver", title="driver", order=22)
def driver(machine: Machine) -> Verdict:
    """Whether the driver runs torch's CUDA."""
    want = cuda.wanted(machine)
    if not want:
        return not_applicable("torch was built without CUDA")
    if not hardware.has_nvidia(machine):
        return not_applicable("no NVIDIA GPU on this machine")
    have = hardware.driver(machine)
    if not have:
        if machine.torch.get("devices"):
            return ok(f"torch sees its devices; the driver runs CUDA {machine.torch.get('driver_cuda') or 'unknown'}")
        return cannot_tell("the driver's version is unknown", "no /proc/driver/nvidia/version, and nvidia-smi fails")
    least = least_for(want)
    if not least:
        return cannot_tell(f"which driver CUDA {want} needs is not in the table", f"driver {have} is loaded")
    if version_numbers(have) >= version_numbers(least):
        own = str(version_table("cuda")["release"].get(want, {}).get("driver", ""))
        minor = own and version_numbers(have) < version_numbers(own)
        note = f"; code for PTX needs {own} (CUDA's minor version compatibility)" if minor else ""
        return ok(f"driver {have} runs CUDA {want} (needs {least}){note}", driver=have, least=least)
    if machine.torch.get("devices"):
        return ok(
            f"driver {have} is older than {least}, but torch sees its devices: forward compatibility is installed"
        )
    newest = ".".join(map(str, hardware.driver_runs(machine)))
    wheel = hardware.wheel(machine)
    return problem(
        f"driver {have} is too old for CUDA {want}, which torch was built for: it needs {least}",
        f"this driver runs CUDA up to {newest or 'an older release than any listed'}",
        (
            f"sudo apt-get install --only-upgrade 'cuda-drivers>={least.split('.')[0]}'  # then reboot",
f"# or: pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}",
        ),
        driver=have, least=least,
    )  # fmt: skip


def least_for(release: str) -> str:
    """Return the oldest driver that runs a CUDA release; empty when no table has it."""
    table = version_table("cuda")
    return table["compatible"].get(str(major(release))) or table["release"].get(release, {}).get("driver", "")
