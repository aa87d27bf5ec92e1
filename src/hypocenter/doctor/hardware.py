"""Cards that are plugged in, whatever torch can see of them."""

from __future__ import annotations

import re

from hypocenter.doctor import versions
from hypocenter.doctor.machine import Machine

NVIDIA, HUAWEI = "0x10de", "0x19e5"  # PCI vendor numbers (pci-ids.ucw.cz)
_DISPLAY, _PROCESSING = "0x03", "0x12"  # PCI base classes: display controller, processing accelerator


def nvidia_devices(machine: Machine) -> int:
    """NVIDIA devices that a loaded driver offers."""
    files = len(machine.names("/dev", r"nvidia\d+"))
    return files or len(machine.names("/proc/driver/nvidia/gpus"))


def nvidia_on_bus(machine: Machine) -> int:
    """NVIDIA cards on the PCI bus, with or without a driver."""
    return _on_bus(machine, NVIDIA, _DISPLAY)


def npu_devices(machine: Machine) -> int:
    """Ascend devices that a loaded driver offers, or that are on the bus."""
    return len(machine.names("/dev", r"davinci\d+")) or _on_bus(machine, HUAWEI, _PROCESSING)


def has_nvidia(machine: Machine) -> bool:
    """Whether there is a GPU that could be used: by torch's word, by the driver's, or by the bus."""
    return bool(
        (machine.torch.get("devices") and machine.torch.get("cuda"))
        or nvidia_devices(machine)
        or nvidia_on_bus(machine)
    )


def hides_gpus(machine: Machine) -> bool:
    """Whether the GPUs were hidden on purpose."""
    return machine.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "none", "NoDevFiles")


def driver(machine: Machine) -> str:
    """Version of NVIDIA's driver, such as 550.54.14; empty when none is loaded."""
    text = machine.text("/proc/driver/nvidia/version")
    if match := re.search(r"Kernel Module\D*?(\d+\.[\d.]+)", text):
        return match[1]
    reply = machine.ask(("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"))
    match = re.match(r"\s*(\d+\.[\d.]+)", reply.text) if reply is not None and reply.is_good else None
    return match[1] if match else ""


def uses_ascend(machine: Machine) -> bool:
    """Whether this is, or is meant to be, a machine with NPUs."""
    names = ("torch-npu", "mindspore-ascend")
    variables = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
    return bool(
        npu_devices(machine)
        or any(machine.package(name) for name in names)
        or any(machine.environ.get(name) for name in variables)
    )


def _on_bus(machine: Machine, vendor: str, kind: str) -> int:
    cards = machine.names("/sys/bus/pci/devices")
    at = "/sys/bus/pci/devices/"
    return sum(
        machine.text(f"{at}{card}/vendor").strip() == vendor and machine.text(f"{at}{card}/class").startswith(kind)
        for card in cards
    )


def driver_runs(machine: Machine) -> tuple[int, ...]:
    """The newest CUDA release that the driver came with, as numbers: (12, 4); empty when there is no driver."""
    if told := versions.numbers(str(machine.torch.get("driver_cuda") or "")):
        return told
    have = versions.numbers(driver(machine))
    known = versions.table("cuda")["release"]
    return max(
        (versions.numbers(name) for name, row in known.items() if versions.numbers(row["driver"]) <= have), default=()
    )


def wheel(machine: Machine) -> str:
    """What PyTorch's wheels for this driver are called, such as cu126: a driver runs all releases of a major number."""
    newest = driver_runs(machine)
    return next((name for least, name in _WHEELS if newest >= least), "cu126" if not newest else "cu102")


_WHEELS = (((13,), "cu130"), ((12,), "cu126"), ((11,), "cu118"))  # pytorch.org/get-started/previous-versions
