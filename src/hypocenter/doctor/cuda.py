"""CUDA toolkits on a machine: which there are, which one the environment chooses, which one torch was built for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from hypocenter.doctor.machine import Machine, major, release, version_numbers

WHERE = ("/usr/local", "/opt", "/usr/lib")  # parents of folders called cuda or cuda-12.4
LIBRARIES = (  # where a toolkit keeps libcudart; the last two are Debian's
    "lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)  # fmt: skip
_CUDART = r"libcudart\.so(?:\.[\d.]+)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolkit:
    """A folder with CUDA's compiler or libraries."""

    folder: str  # as it is written, links not followed
    release: str  # 12.4; empty when no file says
    has_nvcc: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvcc:
    """A compiler driver on PATH."""

    path: str
    release: str  # 12.4; empty when it did not say


def wanted(machine: Machine) -> str:
    """Return the release that torch was built for, such as 12.4; empty for a build without CUDA."""
    return release(str(machine.torch.get("cuda") or ""))


def toolkits(machine: Machine) -> list[Toolkit]:
    """Return all toolkits found, each once though links lead to it, newest first."""
    folders = [f"{parent}/{name}" for parent in WHERE for name in machine.names(parent, r"cuda(?:-\d[\d.]*)?")]
    folders += [machine.environ[name].rstrip("/") for name in ("CUDA_HOME", "CUDA_PATH") if machine.environ.get(name)]
    folders += [path.rsplit("/bin/", 1)[0] for path in machine.programs("nvcc")]
    found: dict[str, Toolkit] = {}
    for folder in sorted(folders, key=lambda name: (name.rsplit("/", 1)[-1] == "cuda", name)):  # a name with a number
        has_nvcc = machine.is_file(f"{folder}/bin/nvcc")
        number = told(machine, folder)
        if number or (has_nvcc and re.search(r"cuda", folder.rsplit("/", 1)[-1])):
            found.setdefault(machine.resolved(folder), Toolkit(folder=folder, release=number, has_nvcc=has_nvcc))
    return sorted(found.values(), key=lambda one: (version_numbers(one.release), one.folder), reverse=True)


def told(machine: Machine, folder: str) -> str:
    """Return the release that a toolkit's files name: version.json (since 11.1), version.txt (before), or cuda.h."""
    if text := machine.text(f"{folder}/version.json"):
        try:
            return release(str(json.loads(text)["cuda"]["version"]))
        except (ValueError, KeyError, TypeError):
            pass
    if match := re.search(r"CUDA Version (\d+\.\d+)", machine.text(f"{folder}/version.txt")):
        return match[1]
    if match := re.search(r"#define\s+CUDA_VERSION\s+(\d+)", machine.text(f"{folder}/include/cuda.h")):
        return f"{int(match[1]) // 1000}.{int(match[1]) % 1000 // 10}"
    match = re.fullmatch(r"cuda-(\d+\.\d+)[\d.]*", machine.resolved(folder).rsplit("/", 1)[-1])
    return match[1] if match and machine.is_dir(folder) else ""


def nvccs(machine: Machine) -> Iterator[Nvcc]:
    """Yield every nvcc on PATH, first the one that runs."""
    for path in machine.programs("nvcc"):
        yield Nvcc(path=path, release=nvcc_release(machine, path))


def nvcc_release(machine: Machine, path: str) -> str:
    """Return the release that `nvcc --version` says; empty when it does not run."""
    reply = machine.ask((path, "--version"))
    match = re.search(r"release (\d+\.\d+)", reply.text) if reply is not None else None
    return match[1] if match else ""


def home(machine: Machine) -> tuple[str, str]:
    """Return the toolkit that extensions are built with, and what chose it, as torch.utils.cpp_extension does."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if machine.environ.get(name):
            return machine.environ[name].rstrip("/"), name
    if on_path := machine.programs("nvcc"):
        return on_path[0].rsplit("/bin/", 1)[0], "PATH"
    return ("/usr/local/cuda", "the default") if machine.is_dir("/usr/local/cuda") else ("", "")


def library_folder(machine: Machine, toolkit: str) -> str:
    """Return the folder below a toolkit that has libcudart; empty when none has."""
    folders = (f"{toolkit}/{name}" for name in LIBRARIES)
    return next((folder for folder in folders if machine.names(folder, _CUDART)), "")


def headers(machine: Machine, toolkit: str) -> str:
    """Return the folder below a toolkit that has cuda_runtime.h; empty when none has."""
    folders = [
        f"{toolkit}/include",
        *(f"{toolkit}/targets/{name}/include" for name in machine.names(f"{toolkit}/targets")),
    ]
    return next((folder for folder in folders if machine.is_file(f"{folder}/cuda_runtime.h")), "")


def cudart_release(machine: Machine, folder: str) -> str:
    """Return the release of the libcudart in a folder, by its full file name; empty when not known."""
    for name in machine.names(folder, _CUDART):
        number = machine.resolved(f"{folder}/{name}").rsplit(".so.", 1)[-1]
        if len(version_numbers(number)) > 2:  # two are no release: every 11.x is called libcudart.so.11.0
            return release(number)
    is_there = bool(machine.names(folder, _CUDART))
    return told(machine, re.sub(r"/(lib64|lib|targets/[^/]+/lib|lib/[^/]+-linux-gnu)$", "", folder)) if is_there else ""


def matching(machine: Machine, *, with_nvcc: bool = True) -> Toolkit | None:
    """Return the installed toolkit that fits torch: the same release, else the nearest of the same major number."""
    want = wanted(machine)
    same = [one for one in toolkits(machine) if major(one.release) == major(want) and (one.has_nvcc or not with_nvcc)]
    return next((one for one in same if one.release == want), same[0] if same else None) if want else None


def exports(folder: str, libraries: str = "") -> tuple[str, ...]:
    """Return lines that put a toolkit first, before what is there."""
    folder, libraries = shlex.quote(folder), shlex.quote(libraries or f"{folder}/lib64")
    return (
        f"export CUDA_HOME={folder}",
        f"export PATH={folder}/bin:$PATH",
        f"export LD_LIBRARY_PATH={libraries}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}",
    )


def exports_of(machine: Machine, toolkit: Toolkit) -> tuple[str, ...]:
    """Return the lines of `exports`, with the folder that really holds the libraries."""
    return exports(toolkit.folder, library_folder(machine, toolkit.folder))


def install(machine: Machine) -> tuple[str, ...]:
    """Return lines that install the toolkit that torch was built for."""
    want = wanted(machine)
    return (
        f"sudo apt-get install cuda-toolkit-{want.replace('.', '-')}  # from NVIDIA's repository",
        f"# or: conda install -c nvidia cuda-toolkit={want}",
    )
