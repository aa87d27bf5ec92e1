"""torch has no NCCL, or loads another one than it came with.

What it means
    Without NCCL several GPUs of one job cannot talk (`ProcessGroupNCCL is only supported with GPUs`, or gloo is taken
    and is slow). A system-wide libnccl that comes first is of another version than on the next node.

How it is decided
    torch is asked for the version it was built with, and which libnccl file it has loaded.

What to do
    Take out of LD_LIBRARY_PATH or LD_PRELOAD what brings the other library in.

When it is wrong
    When a cluster's own NCCL is meant to be taken. Then it must be the same on every node: `hypocenter doctor --comm`.
"""

from __future__ import annotations

from hypocenter.doctor import hardware
from hypocenter.doctor.answer import Verdict, graver, not_applicable, ok, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine


@check("toolkit.nccl", title="NCCL", order=50)
def nccl(machine: Machine) -> Verdict:
    """Which NCCL torch has."""
    if not machine.torch.get("cuda"):
        return not_applicable("torch was built without CUDA")
    version, loaded = str(machine.torch.get("nccl") or ""), machine.torch.get("loaded") or []
    if not version:
        if not hardware.has_nvidia(machine):
            return not_applicable("no NVIDIA GPU on this machine")
        n_devices = len(machine.torch.get("devices") or [])
        return graver(
            n_devices > 1, f"torch {machine.torch.get('version')} has no NCCL", "several GPUs of one job cannot talk",
            ("pip install --force-reinstall torch",),
        )  # fmt: skip
    own = str(machine.torch.get("folder") or "").rsplit("/", 1)[0]
    other = [str(path) for path in loaded if "libnccl" in str(path) and own and not str(path).startswith(f"{own}/")]
    if not other:
        return ok(f"NCCL {version}, torch's own", nccl=version)
    preloaded = any("nccl" in entry for entry in machine.search("LD_PRELOAD"))
    line = "unset LD_PRELOAD" if preloaded else "env -u LD_LIBRARY_PATH hypocenter doctor  # is it torch's own then?"
    return warning(
        f"torch was built with NCCL {version} and loads {other[0]}", "it must be the same file on every node", (line,),
        nccl=version, loaded=other,
    )  # fmt: skip
