"""torch cannot be imported, or not in time.

What it means
    A fresh Python process of the same interpreter, with the same environment, ends with an error at `import torch`.

How it is decided
    `import torch` runs in a child process with a limit of time (`--timeout`). The last line that it says is shown.

What to do
    A library that is not found or has another version (`cannot open shared object file`, `undefined symbol`) usually
    comes first in LD_LIBRARY_PATH: try once without it. Otherwise install torch again in a fresh environment.

When it is wrong
    When training runs in another interpreter, container or module environment than the doctor. Start it there.
"""

from __future__ import annotations

import re

from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine

_LIBRARY = re.compile(r"(\S+\.so[\w.]*)[:,]? (?:cannot open|undefined symbol|version|file too short)|undefined symbol")


@check("toolkit.torch", title="torch", order=10)
def torch(machine: Machine) -> Verdict:
    """Whether a fresh process can import torch."""
    status, error = machine.torch.get("status"), str(machine.torch.get("error", ""))
    if status == "imported":
        version, built = machine.torch.get("version"), machine.torch.get("cuda") or machine.torch.get("hip")
        made = f"built for CUDA {built}" if machine.torch.get("cuda") else f"built for ROCm {built}" if built else ""
        made = made or "a build without CUDA"
        return ok(f"torch {version} can be imported, {made}", version=version, cuda=machine.torch.get("cuda"))
    if status == "missing":
        if machine.package("mindspore"):
            return not_applicable("torch is not installed; MindSpore is")
        return cannot_tell("torch is not installed", error, ("pip install torch",))
    if status == "timeout":
        return problem(
            f"`import torch` gave no answer within {machine.torch.get('seconds', 0):g} s",
            "a driver or a network file system hangs, or the limit is too short for it",
            ("time python -X importtime -c 'import torch' 2> import.log", "hypocenter doctor --timeout 300"),
        )
    lines = ["python -c 'import torch'"]
    if _LIBRARY.search(error) and machine.search("LD_LIBRARY_PATH"):
        lines = [
            "env -u LD_LIBRARY_PATH python -c 'import torch'  # if this works, the order of LD_LIBRARY_PATH is wrong"
        ]
    if machine.torch.get("ended"):
        error = f"{error} ({machine.torch['ended']})"
    return problem("`import torch` fails", error or "it said nothing", lines)
