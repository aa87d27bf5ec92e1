"""HCCL, Ascend's communication library, is not found.

What it means
    `import torch_npu` or MindSpore's init ends with `libhccl.so: cannot open shared object file`; several NPUs cannot
    talk.

How it is decided
    libhccl.so must be in lib64 of the CANN in use, and that folder in LD_LIBRARY_PATH.

What to do
    Source CANN's set_env.sh in the script that starts the job.

When it is wrong
    When the library is found by ldconfig.
"""

from __future__ import annotations

from hypocenter.doctor import ascend, hardware
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.hccl", title="HCCL", order=66)
def hccl(machine: Machine) -> Verdict:
    """Whether libhccl is found."""
    if not hardware.uses_ascend(machine):
        return not_applicable("no Ascend NPU and no Ascend software on this machine")
    if loaded := [str(path) for path in machine.torch.get("loaded") or [] if "libhccl" in str(path)]:
        return ok(f"torch_npu loads {loaded[0]}")
    searched = next(
        (at for at in machine.search("LD_LIBRARY_PATH") if machine.is_file(f"{at.rstrip('/')}/libhccl.so")), ""
    )
    if searched:
        return ok(f"libhccl.so is in {searched}")
    chosen = ascend.active(machine)
    if chosen is None or not machine.is_dir(chosen.folder):
        return cannot_tell("where libhccl.so is", "no CANN is chosen: see toolkit.cann")
    there = [
        f"{chosen.folder}/{name}"
        for name in ("lib64", "hccl/lib64")
        if machine.is_file(f"{chosen.folder}/{name}/libhccl.so")
    ]
    if there:
        return problem(
            f"libhccl.so is in {there[0]}, which LD_LIBRARY_PATH does not name",
            "the loader will not find it",
            (ascend.set_env(machine, chosen),),
        )
    return problem(
        f"CANN {chosen.version} ({chosen.folder}) has no libhccl.so",
        "several NPUs cannot talk",
        ("# install the toolkit package, not only the runtime: Ascend-cann-toolkit_*.run --install",),
    )
