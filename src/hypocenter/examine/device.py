"""The device of this rank: which one, whether memory can be had on it, and how its work is waited for."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import re
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

_POLL_S = 0.0002


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The device on which a rank computes."""

    kind: str  # "cpu", "cuda", "npu"
    index: int
    name: str
    serial: str  # the same for two ranks only when they share the device; empty on the CPU
    backend: str  # of torch.distributed

    @property
    def torch(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.kind) if self.kind == "cpu" else torch.device(self.kind, self.index)

    @property
    def is_cpu(self) -> bool:
        """Whether it is the CPU, where work is done when a call returns."""
        return self.kind == "cpu"

    def use(self) -> None:
        """Make it this thread's device."""
        if not self.is_cpu:
            getattr(torch, self.kind).set_device(self.index)

    def finish(self, deadline: float) -> None:
        """Wait for everything that was started on the device.

        Raises:
            Stuck: it is not done by `deadline` (time.monotonic).
        """
        if self.is_cpu:
            return
        event = getattr(torch, self.kind).Event()
        event.record()
        while not event.query():
            if time.monotonic() > deadline:
                raise Stuck("the device did not finish")
            time.sleep(_POLL_S)


def own_device(local_rank: int) -> Device:
    """Return the device that `local_rank` of this machine computes on: as with torchrun, one device per rank."""
    kind = _kind()
    if kind == "cpu":
        return Device(kind="cpu", index=0, name=_cpu_name(), serial="", backend="gloo")
    module = getattr(torch, kind)
    index = local_rank % module.device_count()
    return Device(
        kind=kind, index=index, name=str(module.get_device_name(index)), serial=_serial(kind, index),
        backend="nccl" if kind == "cuda" else "hccl",
    )  # fmt: skip


def n_devices() -> int:
    """Return how many accelerators this process sees."""
    kind = _kind()
    return 0 if kind == "cpu" else int(getattr(torch, kind).device_count())


def memory(device: Device) -> dict[str, Any]:
    """Write and read back one small allocation: {} when that is well, else {"error": ...}."""
    try:
        there = torch.arange(1024, dtype=torch.float32).to(device.torch)
        if float((there * 2).sum().cpu()) != 1024.0 * 1023.0:
            return {"error": "what was written is not what was read"}
    except Exception as error:  # whatever a driver raises
        return {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
    return {}


def versions() -> dict[str, str]:
    """Return versions that must be equal on all ranks for them to understand each other."""
    known = {"python": platform.python_version(), "torch": str(torch.__version__)}
    if torch.version.cuda:
        known["cuda"] = str(torch.version.cuda)
        if torch.cuda.is_available() and torch.distributed.is_nccl_available():
            from torch.cuda import nccl

            known["nccl"] = ".".join(str(part) for part in nccl.version())
    npu: Any = sys.modules.get("torch_npu")
    if npu is not None:
        known["torch_npu"] = str(npu.__version__)
        with contextlib.suppress(Exception):  # older ones do not know it
            known["cann"] = str(npu.npu.utils.get_cann_version())
    return known


def _kind() -> str:
    if torch.cuda.is_available() and torch.cuda.device_count():
        return "cuda"
    if importlib.util.find_spec("torch_npu") is not None:
        with contextlib.suppress(Exception):  # without a driver it raises what it likes
            importlib.import_module("torch_npu")
    npu = getattr(torch, "npu", None)  # torch_npu puts it there
    return "npu" if npu is not None and npu.is_available() and npu.device_count() else "cpu"


def _serial(kind: str, index: int) -> str:
    known = getattr(torch, kind).get_device_properties(index)
    host = platform.node()
    if getattr(known, "uuid", None):
        return f"{known.uuid}"
    bus = getattr(known, "pci_bus_id", None)
    if bus is not None:
        return f"{host}/{getattr(known, 'pci_domain_id', 0)}:{bus}:{getattr(known, 'pci_device_id', 0)}"
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES" if kind == "npu" else "CUDA_VISIBLE_DEVICES", "")
    physical = visible.split(",")[index] if index < len(visible.split(",")) and visible else str(index)
    return f"{host}/{physical.strip()}"


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123  # one line of a long file
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        model = ""
    return f"{model or platform.processor() or platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


class Stuck(Exception):
    """Something that did not end in its time."""


def kind_of(error: BaseException) -> str:
    """Return `timeout` (nobody answered), `closed` (the other side ended it: a consequence), or `error`."""
    text = str(error).lower()
    if isinstance(error, Stuck) or "timed out" in text or "timeout" in text:
        return "timeout"
    if any(word in text for word in ("closed by peer", "connection reset", "broken pipe", "pair closure", "aborted")):
        return "closed"
    return "error"


def brief(error: BaseException) -> str:
    """Return the first line of an error's text, without the stack that C++ adds."""
    text = str(error).strip().split("\n")[0].split("Exception raised from")[0].split(". This is typically")[0]
    text = re.sub(r"\[\S+\.(cc|cpp|h):\d+\] ", "", text).strip()
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
