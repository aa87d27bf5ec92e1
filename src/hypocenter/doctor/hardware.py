"""Cards that are plugged in, whatever torch can see of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypocenter.doctor.machine import Machine, version_numbers, version_table

NVIDIA, HUAWEI = "0x10de", "0x19e5"  # PCI vendor numbers (pci-ids.ucw.cz)
_DISPLAY, _PROCESSING = "0x03", "0x12"  # PCI base classes: display controller, processing accelerator
_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")
_NAMES = {  # as torch.utils.cpp_extension has them
    "maxwell": "5.0;5.2+PTX", "pascal": "6.0;6.1+PTX", "volta": "7.0+PTX", "turing": "7.5+PTX",
    "ampere": "8.0;8.6+PTX", "ada": "8.9+PTX", "hopper": "9.0+PTX", "blackwell": "10.0;10.3;12.0;12.1+PTX",
}  # fmt: skip
OF_FAMILY = "f"  # sm_100f runs on all of its family; sm_90a on 9.0 only (CUDA C++ Programming Guide, feature sets)


def nvidia_devices(machine: Machine) -> int:
    """Return the number of NVIDIA devices that a loaded driver offers."""
    files = len(machine.names("/dev", r"nvidia\d+"))
    return files or len(machine.names("/proc/driver/nvidia/gpus"))


def nvidia_on_bus(machine: Machine) -> int:
    """Return the number of NVIDIA cards on the PCI bus, with or without a driver."""
    return _on_bus(machine, NVIDIA, _DISPLAY)


def npu_devices(machine: Machine) -> int:
    """Return the number of Ascend devices that a loaded driver offers, or that are on the bus."""
    return len(machine.names("/dev", r"davinci\d+")) or _on_bus(machine, HUAWEI, _PROCESSING)


def has_nvidia(machine: Machine) -> bool:
    """Return whether there is a GPU that could be used: by torch's word, by the driver's, or by the bus."""
    return bool(
        (machine.torch.get("devices") and machine.torch.get("cuda"))
        or nvidia_devices(machine)
        or nvidia_on_bus(machine)
    )


def hides_gpus(machine: Machine) -> bool:
    """Return whether the GPUs were hidden on purpose."""
    return machine.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1", "none", "NoDevFiles")


def driver(machine: Machine) -> str:
    """Return the version of NVIDIA's driver, such as 550.54.14; empty when none is loaded."""
    text = machine.text("/proc/driver/nvidia/version")
    if match := re.search(r"Kernel Module\D*?(\d+\.[\d.]+)", text):
        return match[1]
    reply = machine.ask(("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"))
    match = re.match(r"\s*(\d+\.[\d.]+)", reply.text) if reply is not None and reply.is_good else None
    return match[1] if match else ""


def uses_ascend(machine: Machine) -> bool:
    """Return whether this is, or is meant to be, a machine with NPUs."""
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
    """Return the newest CUDA release that the driver came with, as numbers: (12, 4); () without a driver."""
    if told := version_numbers(str(machine.torch.get("driver_cuda") or "")):
        return told
    have = version_numbers(driver(machine))
    known = version_table("cuda")["release"]
    return max(
        (version_numbers(name) for name, row in known.items() if version_numbers(row["driver"]) <= have), default=()
    )


def wheel(machine: Machine) -> str:
    """Return the name of PyTorch's wheels for this driver, such as cu126: it runs all releases of a major number."""
    newest = driver_runs(machine)
    return next((name for least, name in _WHEELS if newest >= least), "cu126" if not newest else "cu102")


_WHEELS = (((13,), "cu130"), ((12,), "cu126"), ((11,), "cu118"))  # pytorch.org/get-started/previous-versions


def runs_on(capability: Sequence[int], arch_list: Sequence[str]) -> str:
    """Return `code` when machine code in the list runs on the device, `ptx` when only that does, else ""."""
    device = (capability[0], capability[1])
    how = ""
    for kind, major, minor, letter in (found.groups() for name in arch_list if (found := _ARCH.fullmatch(name))):
        built = (int(major), int(minor))
        if letter not in ("", OF_FAMILY) and built != device:
            continue
        if kind == "sm" and built[0] == device[0] and built <= device:
            return "code"
        if kind == "compute" and built <= device:
            how = "ptx"
    return how


def listed_in(text: str) -> list[str]:
    """Return TORCH_CUDA_ARCH_LIST as architectures: `sm_86` and `compute_86` for `8.6+PTX`.

    Raises:
        ValueError: an entry is neither a number nor a name; its text is that entry.
    """
    found: list[str] = []
    for entry in filter(None, re.split(r"[;\s]+", text)):
        for part in _NAMES.get(entry.lower(), entry).split(";"):
            match = re.fullmatch(r"(\d+)\.(\d)([a-z]?)(\+PTX)?", part)
            if match is None:
                raise ValueError(entry)
            name = f"{match[1]}{match[2]}{match[3]}"
            found += [f"sm_{name}", *([f"compute_{name}"] if match[4] else [])]
    return found


def of_devices(devices: Sequence[dict[str, object]]) -> list[str]:
    """Return the compute capabilities of devices, each once: `["6.1", "8.6"]`."""
    pairs = {tuple(one["capability"]) for one in devices}  # type: ignore[arg-type]
    return [f"{major}.{minor}" for major, minor in sorted(pairs)]
