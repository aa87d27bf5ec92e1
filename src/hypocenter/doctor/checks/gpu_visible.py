"""There is a GPU that torch does not see.

What it means
    Training runs on the CPU, or stops at the first `.cuda()`, although a card is plugged in.

How it is decided
    Cards are counted on the PCI bus and among the driver's device files; torch is asked in a child process. A build of
    torch without CUDA beside a loaded driver is a problem; beside a card without a driver it is a warning. A card that
    CUDA_VISIBLE_DEVICES hides is not missed.

What to do
    Install the build of torch for your driver; load the driver; pass the devices into the container (`--gpus all`).

When it is wrong
    When the card is there for the screen only and training is meant to run on the CPU.
"""

from __future__ import annotations

from hypocenter.doctor import hardware
from hypocenter.doctor.answer import Verdict, cannot_tell, not_applicable, ok, problem, warning
from hypocenter.doctor.catalogue import check
from hypocenter.doctor.machine import Machine, release


@check("toolkit.gpu-visible", title="GPU", order=20)
def gpu_visible(machine: Machine) -> Verdict:
    """Whether torch sees the cards that are there."""
    cards, on_bus = hardware.nvidia_devices(machine), hardware.nvidia_on_bus(machine)
    if not machine.has_torch:
        return _untold(cards or on_bus)
    seen = machine.torch.get("devices") or []
    if seen:
        kinds = ", ".join(dict.fromkeys(str(one["name"]) for one in seen))
        return ok(f"torch sees {len(seen)} of {max(cards, len(seen))}: {kinds}", devices=seen)
    if not cards and not on_bus:
        return not_applicable("no NVIDIA GPU on this machine")
    if hardware.hides_gpus(machine):
        return ok(f"CUDA_VISIBLE_DEVICES={machine.environ['CUDA_VISIBLE_DEVICES']} hides {cards or on_bus} of them")
    if not machine.torch.get("cuda") and not machine.torch.get("hip"):
        return _without_cuda(machine, cards, on_bus)
    return _unseen(machine, cards, on_bus)


def _untold(n_cards: int) -> Verdict:
    if not n_cards:
        return not_applicable("no NVIDIA GPU on this machine")
    return cannot_tell(f"{n_cards} on this machine, and no torch that could be asked", "torch cannot be imported")


def _without_cuda(machine: Machine, cards: int, on_bus: int) -> Verdict:
    version = machine.torch.get("version")
    if machine.package("torch-npu"):
        return ok(f"torch {version} is a build without CUDA, as torch_npu needs it")
    what = f"{cards or on_bus} on this machine, but torch {version} is a build without CUDA"
    fix = (
        f"pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/{hardware.wheel(machine)}",
    )
    if not cards:
        return warning(what, "no driver is loaded either: it will compute on the CPU", fix)
    return problem(what, "the driver is loaded, and everything will run on the CPU", fix)


def _unseen(machine: Machine, cards: int, on_bus: int) -> Verdict:
    error = str(machine.torch.get("cuda_error") or "")
    if not cards:
        return problem(
            f"{on_bus} on the PCI bus, but no driver is loaded", error or "there is no /dev/nvidia0",
            ("sudo modprobe nvidia", "nvidia-smi", "# in a container: start it with --gpus all"),
        )  # fmt: skip
    reply = machine.ask(("nvidia-smi",))
    said = (reply.text + reply.errors).strip().splitlines() if reply is not None and not reply.is_good else []
    why = error or (said[0] if said else f"built for CUDA {release(str(machine.torch.get('cuda')))}")
    return problem(f"{cards} on this machine, and torch sees none", why, ("nvidia-smi", "dmesg | grep -i nvrm | tail"))
