"""Are CUDA extensions built here? If not, a missing nvcc is no fault: torch's wheels bring their own CUDA."""

from __future__ import annotations

from hypocenter.doctor import cuda, hardware
from hypocenter.doctor.machine import Machine

_MEANT = ("FORCE_CUDA", "TORCH_CUDA_ARCH_LIST")  # set by people who build extensions


def reason(machine: Machine) -> str:
    """Say in words why extensions are built here; empty when nothing says so."""
    if machine.builds is not None:
        return "asked for with --build" if machine.builds else ""
    if not cuda.wanted(machine) or not hardware.has_nvidia(machine):
        return ""
    asked = [name for name in machine.environ if name.startswith("DS_BUILD_") and machine.environ[name] == "1"]
    asked += [name for name in _MEANT if machine.environ.get(name)]
    if asked:
        return f"{asked[0]} is set"
    missing = [name for name, op in ops(machine).items() if not op.get("built")]
    return "DeepSpeed builds its operators when they are first used" if missing else ""


def ops(machine: Machine) -> dict[str, dict[str, object]]:
    """Return DeepSpeed's operators by name; empty when it is not installed or could not be asked."""
    found = machine.deepspeed.get("ops")
    return found if isinstance(found, dict) else {}
