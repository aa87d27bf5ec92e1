"""What torch says of itself and its devices, printed as one line of JSON: `python -m hypocenter.examine.torch_facts`.

Run as a child process with a limit of time, because importing torch or waking a driver can crash or hang. `gather` may
be called by a rank too: it changes nothing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

SWITCHES = (
    "cuda.matmul.allow_tf32", "cudnn.allow_tf32", "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_accumulation", "cudnn.enabled",
    "cudnn.deterministic", "cudnn.benchmark", "mkldnn.enabled", "mkldnn.deterministic",
)  # fmt: skip
"""Attributes below torch.backends that change numbers."""

NPU_SWITCHES = ("npu.matmul.allow_hf32", "npu.conv.allow_hf32")
"""The same below torch, where torch_npu puts them."""

_LIBRARY = re.compile(r"/\S*lib(?:cudart|cublas|cublasLt|cudnn|nccl|cuda|hccl|ascendcl)(?:\.so|[-.][\w.]*\.so)\S*")


def main() -> None:
    """Print the facts; a torch that cannot be imported is a fact too. `--switches`: only those that need no device."""
    print(json.dumps(facts(with_devices="--switches" not in sys.argv[1:])), flush=True)


def facts(*, with_devices: bool = True) -> dict[str, Any]:
    """Return `{"status": "imported", ...}`, or status `missing` or `failed` with the error."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as error:
        is_missing = error.name == "torch"
        return {"status": "missing" if is_missing else "failed", "error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # OSError of a shared library, RuntimeError of an extension, anything
        return {"status": "failed", "error": f"{type(error).__name__}: {error}", "installed": _installed("torch")}
    return {"status": "imported", **(gather() if with_devices else settled())}


def settled() -> dict[str, Any]:
    """Return versions and switches of torch in this process, without waking a device. Imports torch."""
    import torch

    return {
        "version": str(torch.__version__), "cuda": torch.version.cuda, "hip": torch.version.hip, "switches": switches()
    }  # fmt: skip


def gather() -> dict[str, Any]:
    """Return versions, devices, switches and loaded libraries of torch in this process. Imports torch."""
    import torch

    known: dict[str, Any] = {
        **settled(), "folder": str(Path(torch.__file__).parent), "arch_list": [], "devices": [],
    }  # fmt: skip
    known["cuda_available"], known["cuda_error"] = _tried(torch.cuda.is_available)
    if torch.version.cuda or torch.version.hip:
        known["arch_list"] = _tried(torch.cuda.get_arch_list)[0] or _tried(torch._C._cuda_getArchFlags)[0] or []
        if isinstance(known["arch_list"], str):
            known["arch_list"] = known["arch_list"].split()
        known["driver_cuda"] = _driver(torch)
        known["cudnn"] = _dotted(_tried(torch.backends.cudnn.version)[0])
        known["nccl"] = _nccl(torch)
    if known["cuda_available"]:
        known["devices"], known["cuda_error"] = _tried(lambda: _devices(torch))
        known["devices"] = known["devices"] or []
    known["npu"] = _npu(torch)
    known["loaded"] = loaded_libraries()
    return known


def switches() -> dict[str, Any]:
    """Return the settings that change numbers, as this process has them."""
    import torch

    found: dict[str, Any] = {}
    for name in (*SWITCHES, *NPU_SWITCHES):
        value: Any = torch if name in NPU_SWITCHES else torch.backends
        for part in name.split("."):
            value = getattr(value, part, None)
        if isinstance(value, (bool, int, str)):
            found[name] = value
    found["float32_matmul_precision"] = _tried(torch.get_float32_matmul_precision)[0]
    found["deterministic_algorithms"] = torch.are_deterministic_algorithms_enabled()
    found["autocast_cache"] = torch.is_autocast_cache_enabled()
    found["default_dtype"] = str(torch.get_default_dtype()).removeprefix("torch.")
    found["threads"] = torch.get_num_threads()
    found["interop_threads"] = torch.get_num_interop_threads()
    found["cpu_capability"] = _tried(torch.backends.cpu.get_cpu_capability)[0]
    return found


def loaded_libraries() -> list[str]:
    """Return paths of the CUDA, NCCL and Ascend libraries that this process has mapped (Linux)."""
    try:
        text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return sorted(set(_LIBRARY.findall(text)))


def _devices(torch: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        capability = [int(properties.major), int(properties.minor)]
        found.append(
            {"index": index, "name": properties.name, "capability": capability, "bytes": properties.total_memory}
        )
    return found


def _driver(torch: Any) -> str:
    """Return the newest CUDA that the driver runs, such as 12.4; empty without a driver."""
    number = _tried(lambda: torch._C._cuda_getDriverVersion())[0]
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) and number > 0 else ""


def _nccl(torch: Any) -> str:
    version = _tried(torch.cuda.nccl.version)[0] if torch.distributed.is_available() else None
    return ".".join(map(str, version)) if isinstance(version, tuple) else _dotted(version)


def _dotted(number: Any) -> str:
    """Return cuDNN's number as a version: 9.1.0 for 90100 (before version 9: 8.9.2 for 8902)."""
    if not isinstance(number, int) or number <= 0:
        return ""
    if number >= 90000:
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    return f"{number // 1000}.{number % 1000 // 100}.{number % 100}"


def _npu(torch: Any) -> dict[str, Any]:
    """Return what torch_npu says; empty when it is not installed."""
    if not _installed("torch-npu"):
        return {}
    module, error = _tried(lambda: importlib.import_module("torch_npu"))
    if module is None:
        return {"error": error}
    known: dict[str, Any] = {"version": str(getattr(module, "__version__", ""))}
    known["available"], known["error"] = _tried(torch.npu.is_available)
    count = _tried(torch.npu.device_count)[0] or 0
    known["devices"] = [str(_tried(lambda i=i: torch.npu.get_device_name(i))[0]) for i in range(count)]
    return known


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _tried(ask: Callable[[], Any]) -> tuple[Any, str]:
    """Return (the answer, ""), or (None, the error) when this build or driver cannot answer."""
    try:
        return ask(), ""
    except Exception as error:  # a build without CUDA and a broken driver raise several kinds
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


if __name__ == "__main__":
    main()
