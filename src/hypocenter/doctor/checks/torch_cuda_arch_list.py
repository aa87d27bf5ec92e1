"""TORCH_CUDA_ARCH_LIST leaves out a device of this machine.

What it means
    Extensions that are built now hold code for the listed architectures only, and fail at the first kernel on the
    device that is left out: `no kernel image is available`.

How it is decided
    Each entry is a number such as 8.6, with `+PTX` for intermediate code too, or a name such as Ampere. An entry X.Y
    runs on devices X.Z with Z >= Y, with +PTX on every newer one. The devices are what torch sees.

What to do
    List the compute capability of every device that the extension will run on, separated by semicolons.

When it is wrong
    When the extension is built here for another machine.
"""

from __future__ import annotations

from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.hardware import listed_in, of_devices, runs_on
from hypocenter.doctor.machine import Machine, version_numbers


@check("toolkit.torch-cuda-arch-list", title="TORCH_CUDA_ARCH_LIST", order=26)
def torch_cuda_arch_list(machine: Machine) -> Verdict:
    """Whether extensions that are built now will run here."""
    text = machine.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if not text.strip():
        return not_applicable("TORCH_CUDA_ARCH_LIST is not set: builds take the devices they see")
    devices = machine.torch.get("devices") or []
    wanted = of_devices(devices)
    should_be = ";".join(wanted)
    fix = (f'export TORCH_CUDA_ARCH_LIST="{should_be}"',)
    try:
        listed = listed_in(text)
    except ValueError as error:
        return problem(
            f"TORCH_CUDA_ARCH_LIST={text!r} has an entry that torch does not know: {str(error)!r}",
            "every build of an extension fails", fix if wanted else ("unset TORCH_CUDA_ARCH_LIST",),
        )  # fmt: skip
    if not wanted:
        return cannot_tell(f"TORCH_CUDA_ARCH_LIST={text!r} is set, for devices that are not here", "torch sees no GPU")
    left_out = [one for one in wanted if not runs_on(version_numbers(one), listed)]
    if left_out:
        return problem(
            f"TORCH_CUDA_ARCH_LIST={text!r} has no code for compute capability {', '.join(left_out)} of this machine",
            "extensions built now fail at the first kernel: no kernel image is available for execution on the device",
            fix, wanted=should_be,
        )  # fmt: skip
    return ok(f"TORCH_CUDA_ARCH_LIST={text!r} covers {should_be}")
