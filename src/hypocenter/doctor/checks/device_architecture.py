"""torch has no code for a device's architecture.

What it means
    `no kernel image is available for execution on the device` at the first kernel. Each build of torch holds machine
    code for a list of architectures (`torch.cuda.get_arch_list()`): `sm_86` runs on compute capability 8.6.

How it is decided
    Code for `sm_XY` runs on devices X.Z with Z >= Y; intermediate code `compute_XY` runs on every device from X.Y on,
    compiled by the driver at the first use. Architectures with a letter (`sm_90a`) run on that device only. A device
    that nothing of the list fits is a problem; one that only intermediate code fits is a warning.

What to do
    Install a build of torch that has the architecture; newer devices need newer CUDA.

When it is wrong
    When the device is not used for training: hide it with CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.hardware import runs_on
from hypocenter.doctor.machine import Machine, version_numbers

_LEAST_CUDA = (((10, 0), "cu128"), ((9, 0), "cu118"))  # CUDA 12.8 is the first with Blackwell, 11.8 with Hopper
_DROPPED = (((7, 5), "13.0"),)  # CUDA 13 compiles for 7.5 and newer only (its release notes)


@check("toolkit.device-architecture", title="architectures", order=24)
def device_architecture(machine: Machine) -> Verdict:
    """Whether torch holds code for each device."""
    devices = machine.torch.get("devices") or []
    if not devices or machine.torch.get("hip"):
        return not_applicable("torch sees no NVIDIA GPU")
    listed = [str(one) for one in machine.torch.get("arch_list") or []]
    if not listed:
        return cannot_tell(
            "torch did not say for which architectures it was built", "torch.cuda.get_arch_list() is empty"
        )
    found = {_name(one["capability"]): runs_on(one["capability"], listed) for one in devices}
    names = {_name(one["capability"]): str(one["name"]) for one in devices}
    if bad := [capability for capability, how in found.items() if how == ""]:
        return _missing(bad[0], names[bad[0]], listed, machine)
    if slow := [capability for capability, how in found.items() if how == "ptx"]:
        return warning(
            f"{names[slow[0]]} (compute capability {slow[0]}) runs only what the driver compiles: {', '.join(listed)}",
            "the first call of each kernel is slow, and kernels without intermediate code are missing",
            ("pip install --upgrade torch",), capability=slow[0], arch_list=listed,
        )  # fmt: skip
    return ok(f"code for {', '.join(sorted(found))} is in torch: {', '.join(listed)}", arch_list=listed)


def _missing(capability: str, name: str, listed: list[str], machine: Machine) -> Verdict:
    version = version_numbers(capability)
    wheel = next((wheel for least, wheel in _LEAST_CUDA if version >= least), "cu118")
    if any(version < least for least, _ in _DROPPED):
        wheel = "cu118" if version < (5, 0) else "cu126"  # PyTorch's cu126 wheels are the last with Maxwell to Volta
    return problem(
        f"{name} has compute capability {capability}; torch {machine.torch.get('version')} has {', '.join(listed)}",
        "the first kernel fails: no kernel image is available for execution on the device",
        (f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{wheel}",),
        capability=capability, arch_list=listed,
    )  # fmt: skip


def _name(capability: list[int]) -> str:
    return f"{capability[0]}.{capability[1]}"
