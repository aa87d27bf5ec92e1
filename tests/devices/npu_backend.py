"""Makes `npu` a device of this process: compiles npu_backend.cpp, names the backend, and gives torch a `torch.npu`.

What torch_npu does on an Ascend machine, done on the CPU. It proves that nothing here asks for CUDA; it says nothing of
an NPU's numbers, speed or kernels. `torch.npu` has the functions of torch_npu that its documentation lists and that a
debugger may call.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

_SOURCE = Path(__file__).with_suffix(".cpp")


def library() -> Path | None:
    """The compiled backend for this torch, made once per machine; None where there is no compiler (about 10 s)."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    headers = Path(torch.__file__).parent / "include"
    if compiler is None or not headers.is_dir() or sys.platform != "linux":
        return None
    key = hashlib.sha256(_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"hypocenter-test-npu-{os.getuid()}-{key}.so"
    if not made.exists():
        half = made.with_suffix(f".{os.getpid()}.so")
        command = [compiler, "-std=c++20", "-O0", "-shared", "-fPIC", "-w", f"-I{headers}"]
        command += [f"-I{headers}/torch/csrc/api/include", str(_SOURCE), "-o", str(half)]
        if not torch._C._GLIBCXX_USE_CXX11_ABI:
            command.append("-D_GLIBCXX_USE_CXX11_ABI=0")
        done = subprocess.run([*command, f"-L{headers.parent}/lib", "-ltorch_cpu", "-lc10"], capture_output=True)
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-4000:])
        half.replace(made)
    return made


def begin() -> Any:
    """Register the device in this process; returns `torch.npu`. To be called once, and for good."""
    torch.ops.load_library(str(library()))
    torch.ops.hypocenter_test_npu.begin()
    torch.utils.rename_privateuse1_backend("npu")
    npu: Any = types.ModuleType("torch.npu")
    own = torch.ops.hypocenter_test_npu
    npu.__dict__.update(
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
        device_count=lambda: 1, current_device=lambda: 0, set_device=lambda device: None, synchronize=lambda *_: None,
        manual_seed=own.manual_seed, manual_seed_all=own.manual_seed,
        get_rng_state=lambda device="npu": own.rng_state(),
        set_rng_state=lambda state, device="npu": own.set_rng_state(state),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        get_device_name=lambda device=None: "Ascend910B2",
        get_device_properties=lambda device=None: types.SimpleNamespace(name="Ascend910B2", total_memory=64 << 30),
        matmul=types.SimpleNamespace(allow_hf32=False), conv=types.SimpleNamespace(allow_hf32=True),
        utils=types.SimpleNamespace(is_support_inf_nan=lambda: True, get_cann_version=lambda: "8.2.RC1"),
    )  # fmt: skip
    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    return npu
