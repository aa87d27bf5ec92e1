"""Compute capabilities of devices, and lists of the architectures that code was built for."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([a-z]?)")
_NAMES = {  # as torch.utils.cpp_extension has them
    "maxwell": "5.0;5.2+PTX", "pascal": "6.0;6.1+PTX", "volta": "7.0+PTX", "turing": "7.5+PTX",
    "ampere": "8.0;8.6+PTX", "ada": "8.9+PTX", "hopper": "9.0+PTX", "blackwell": "10.0;10.3;12.0;12.1+PTX",
}  # fmt: skip
OF_FAMILY = "f"  # sm_100f runs on all of its family; sm_90a on 9.0 only (CUDA C++ Programming Guide, feature sets)


def runs_on(capability: Sequence[int], arch_list: Sequence[str]) -> str:
    """`code` when machine code of the list runs on the device, `ptx` when only intermediate code does, else empty."""
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
    """TORCH_CUDA_ARCH_LIST as architectures: `8.6+PTX` is `sm_86` and `compute_86`.

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
    """The compute capabilities of devices, each once: `["6.1", "8.6"]`."""
    pairs = {tuple(one["capability"]) for one in devices}  # type: ignore[arg-type]
    return [f"{major}.{minor}" for major, minor in sorted(pairs)]
