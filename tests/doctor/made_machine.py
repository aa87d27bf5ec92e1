"""Machines made for tests: a root folder with toolkits, and programs that are files holding what they answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypocenter.doctor.answer import Check
from hypocenter.doctor.catalogue import checks, examine_machine
from hypocenter.doctor.machine import Machine, Reply

SITE = "/usr/lib/python3/site-packages"
ARCHS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
OPS = {
    name: {"built": False, "compatible": True, "variable": f"DS_BUILD_{name.upper()}", "why": ""}
    for name in ("cpu_adam", "fused_adam", "utils", "async_io")
}
SWITCHES = {
    "cuda.matmul.allow_tf32": False, "cudnn.allow_tf32": True, "cudnn.benchmark": False,
    "float32_matmul_precision": "highest", "deterministic_algorithms": False, "threads": 8,
}  # fmt: skip


@dataclass
class Made:
    """A machine in the making. A healthy one to begin with: what a test changes is its fault."""

    root: Path
    cuda: str | None = "12.4"  # of torch
    capabilities: Sequence[tuple[int, int]] = ((8, 6),)
    arch_list: Sequence[str] = ARCHS
    driver: str = "550.54.14"
    environ: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home/me"}
    )
    packages: dict[str, str] = field(default_factory=lambda: {"torch": "2.6.0"})
    torch: dict[str, Any] = field(default_factory=dict)  # facts that replace the usual ones
    deepspeed: dict[str, Any] = field(default_factory=dict)
    builds: bool | None = None
    card: str = "NVIDIA GeForce RTX 3090"

    def file(self, path: str, text: str = "") -> None:
        """A file of the machine."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(text, encoding="utf-8")

    def folder(self, path: str) -> None:
        """A folder of the machine."""
        (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def link(self, path: str, target: str) -> None:
        """A symbolic link of the machine, to a path of the machine."""
        at = self.root / path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        at.symlink_to(target)

    def toolkit(self, release: str, *, at: str = "", lib: str = "lib64", patch: str = "131", nvcc: bool = True) -> str:
        """A CUDA toolkit as NVIDIA installs it; `lib` empty for none. Its folder."""
        at = at or f"/usr/local/cuda-{release}"
        major, minor = map(int, release.split("."))
        self.file(f"{at}/include/cuda.h", f"#define CUDA_VERSION {major * 1000 + minor * 10}\n")
        self.file(f"{at}/include/cuda_runtime.h")
        if nvcc:
            self.file(f"{at}/bin/nvcc", f"Cuda compilation tools, release {release}, V{release}.{patch}\n")
        if lib:
            self.file(f"{at}/{lib}/libcudart.so.{release}.{patch}")
            soname = f"{major}.0" if major == 11 else f"{major}" if major > 11 else release
            self.link(f"{at}/{lib}/libcudart.so.{soname}", f"libcudart.so.{release}.{patch}")
            self.link(f"{at}/{lib}/libcudart.so", f"libcudart.so.{soname}")
        return at

    def gcc(self, version: str, name: str = "gcc") -> None:
        """A host compiler in /usr/bin."""
        self.file(f"/usr/bin/{name}", f"{name} (Ubuntu {version}-1ubuntu1~22.04) {version}\nCopyright (C) 2021\n")

    def program(self, name: str, says: str) -> None:
        """A program in /usr/bin and what it says."""
        self.file(f"/usr/bin/{name}", says)

    def use_deepspeed(self, **ops: Mapping[str, Any]) -> None:
        """DeepSpeed is installed, its operators not built ahead."""
        self.packages["deepspeed"] = "0.16.4"
        known = {**{name: dict(op) for name, op in OPS.items()}, **{name: dict(op) for name, op in ops.items()}}
        self.deepspeed = {"status": "imported", "version": "0.16.4", "accelerator": "cuda", "ops": known}

    def put_first(self, toolkit: str) -> None:
        """The lines of the guide: a toolkit first in PATH and LD_LIBRARY_PATH."""
        self.environ["PATH"] = f"{toolkit}/bin:{self.environ['PATH']}"
        later = self.environ.get("LD_LIBRARY_PATH", "")
        self.environ["LD_LIBRARY_PATH"] = f"{toolkit}/lib64:{later}".rstrip(":")

    def machine(self) -> Machine:
        """What the checks see."""
        if self.driver:
            text = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {self.driver}  Thu Feb 22\n"
            self.file("/proc/driver/nvidia/version", text)
            for index in range(max(1, len(self.capabilities))):
                self.file(f"/dev/nvidia{index}")
        return Machine(
            environ=self.environ, root=self.root, ask=self._ask, torch={**self._torch(), **self.torch},
            deepspeed=self.deepspeed, packages=self.packages, host="made", n_cores=8, builds=self.builds,
        )  # fmt: skip

    def look(self, code: str) -> Check:
        """One check's answer."""
        (found,) = [one for one in self.all() if one.code == code]
        return found

    def all(self) -> list[Check]:
        """Every check's answer."""
        found = list(examine_machine(self.machine()))
        for one in found:
            shlex.split("\n".join(one.fix), comments=True)  # what is to be pasted, a shell can read
            assert "…" not in "".join(one.fix)
            as_json(one.evidence)
        assert not [one for one in found if one.what == "the check itself failed"]
        return found

    def bad(self) -> dict[str, str]:
        """Codes of checks that are neither fine nor beside the point, with their status."""
        return {one.code: one.status for one in self.all() if one.status not in ("ok", "not-applicable")}

    def _torch(self) -> dict[str, Any]:
        suffix = f"+cu{self.cuda.replace('.', '')}" if self.cuda else "+cpu"
        devices = [
            {"index": index, "name": self.card, "capability": list(capability), "bytes": 24 << 30}
            for index, capability in enumerate(self.capabilities)
        ]
        return {
            "status": "imported", "version": f"2.6.0{suffix}", "cuda": self.cuda, "hip": None,
            "folder": f"{SITE}/torch",
            "arch_list": list(self.arch_list) if self.cuda else [], "devices": devices if self.cuda else [],
            "cuda_available": bool(devices) and bool(self.cuda), "cuda_error": "", "driver_cuda": "", "npu": {},
            "nccl": "2.21.5" if self.cuda else "", "cudnn": "9.1.0", "loaded": [], "switches": dict(SWITCHES),
        }  # fmt: skip

    def _ask(self, argv: tuple[str, ...]) -> Reply | None:
        here = Machine(environ=self.environ, root=self.root)
        path = argv[0] if argv[0].startswith("/") else next(iter(here.programs(argv[0])), "")
        path = path or (f"/usr/bin/{argv[0]}" if here.is_file(f"/usr/bin/{argv[0]}") else "")
        return Reply(text=here.text(path)) if path and here.is_file(path) else None


def codes() -> set[str]:
    """All checks there are."""
    return {entry.code for entry in checks()}


def as_json(value: object) -> str:
    """For assertions that evidence is plain data."""
    return json.dumps(value)
