"""Ascend's software on a machine: which CANN toolkits there are, which one the environment chooses, what fits."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypocenter.doctor.machine import Machine, version_table

ROOTS = ("/usr/local/Ascend", "/opt/Ascend")
VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_ARCHS = ("x86_64-linux", "aarch64-linux")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cann:
    """A CANN toolkit: its folder and version (8.0.RC3; empty when no file says)."""

    folder: str
    version: str


def installed(machine: Machine) -> list[Cann]:
    """Return all CANN toolkits found, each once though links lead to it."""
    roots = [*ROOTS, f"{machine.environ['HOME']}/Ascend"] if machine.environ.get("HOME") else list(ROOTS)
    folders = [
        f"{root}/ascend-toolkit/{name}" for root in roots for name in machine.names(f"{root}/ascend-toolkit", r"\d.*")
    ]
    folders += [f"{root}/{name}" for root in roots for name in machine.names(root, r"cann(?:-\d.*)?")]
    folders += [f"{root}/ascend-toolkit/latest" for root in roots if machine.is_dir(f"{root}/ascend-toolkit/latest")]
    found = {
        machine.resolved(folder): Cann(folder=folder, version=told(machine, folder)) for folder in reversed(folders)
    }
    return [one for one in reversed(found.values()) if one.version]


def told(machine: Machine, folder: str) -> str:
    """Return the version in a toolkit's own files, as tables write it: 8.0.RC3; empty when none says."""
    for name in (*(f"{arch}/ascend_toolkit_install.info" for arch in _ARCHS), "ascend_toolkit_install.info"):
        if match := re.search(r"^version=(\S+)", machine.text(f"{folder}/{name}"), re.MULTILINE):
            return plain(match[1])
    for name in ("version.cfg", "runtime/version.info", "compiler/version.info"):
        text = machine.text(f"{folder}/{name}")
        match = re.search(r"\[[\d.]+:([\w.]+)\]", text) or re.search(
            r"^(?:Version|version_dir)=(\S+)", text, re.MULTILINE
        )
        if match:
            return plain(match[1])
    return ""


def plain(version: str) -> str:
    """Return the release: 8.0.RC3 for `8.0.RC3.beta1`, 8.3.RC1 for `8.3.rc1`; community and commercial are one."""
    return re.sub(r"\.?beta\d*$", "", version.strip(), flags=re.IGNORECASE).upper().replace("ALPHA", "alpha")


def active(machine: Machine) -> Cann | None:
    """Return the toolkit that the environment chooses; else the only one there is, or None."""
    for name in VARIABLES:
        if folder := machine.environ.get(name, "").rstrip("/"):
            return Cann(folder=folder, version=told(machine, folder))
    found = installed(machine)
    return found[0] if len({one.version for one in found}) == 1 else None


def driver(machine: Machine) -> str:
    """Return the version of the NPU's driver, such as 24.1.RC3; empty when it does not say."""
    for root in ROOTS:
        if match := re.search(r"^Version=(\S+)", machine.text(f"{root}/driver/version.info"), re.MULTILINE):
            return plain(match[1])
    return ""


def set_env(machine: Machine, cann: Cann | None = None) -> str:
    """Return the line that sets all of Ascend's variables."""
    folder = cann.folder if cann is not None else "/usr/local/Ascend/ascend-toolkit"
    for at in (folder, folder.rsplit("/", 1)[0]):
        if machine.is_file(f"{at}/set_env.sh"):
            return f"source {at}/set_env.sh"
    return "source /usr/local/Ascend/ascend-toolkit/set_env.sh"


def for_torch(torch: str, torch_npu: str) -> list[str]:
    """Return the CANN releases that a pair of torch and torch_npu is listed with."""
    return [cann for cann, pairs in version_table("ascend")["torch_npu"].items() if [torch, torch_npu] in pairs]


def torch_npu_for(torch: str, cann: str) -> str:
    """Return the torch_npu for this torch and, if listed, this CANN; empty when no table has it."""
    known = {release: dict(pairs) for release, pairs in version_table("ascend")["torch_npu"].items()}
    fitting = [pairs[torch] for pairs in known.values() if torch in pairs]
    return str(known.get(cann, {}).get(torch) or next(iter(fitting), ""))


def mindspore_version(version: str) -> str:
    """Return a version as pip writes it: 2.6.0rc1 for `2.6.0-rc1`."""
    return version.replace("-", "").lower()
