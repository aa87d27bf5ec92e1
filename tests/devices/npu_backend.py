"""Makes `npu` a device of this process: compiles npu_backend.cpp, names the backend, and gives torch a `torch.npu`.

What torch_npu does on an Ascend machine, done on the CPU. It proves that nothing here asks for CUDA; it says nothing of
an NPU's numbers, speed or kernels. `torch.npu` has the functions of torch_npu that its documentation lists and that a
debugger may call.

What happens on a real device and not on a CPU is here too (npu_runtime.h): syncs are counted (`Syncs`), streams and
events keep time (`races`, `never_ready`), graphs are captured (`capturing`), memory ends (`limited_memory`), and after
`torch._assert_async` has failed every sync raises.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Any

import torch

_SOURCE = Path(__file__).with_suffix(".cpp")
_HEADER = Path(__file__).with_name("npu_runtime.h")


def library() -> Path | None:
    """The compiled backend for this torch, made once per machine; None where there is no compiler (about 10 s)."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    headers = Path(torch.__file__).parent / "include"
    if compiler is None or not headers.is_dir() or sys.platform != "linux":
        return None
    key = hashlib.sha256(_SOURCE.read_bytes() + _HEADER.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
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
    made = str(library())
    torch.ops.load_library(made)
    is_capturing = ctypes.CDLL(made).hypocenter_test_npu_is_capturing
    is_capturing.restype = ctypes.c_bool
    torch.ops.hypocenter_test_npu.begin()
    torch.utils.rename_privateuse1_backend("npu")
    npu: Any = types.ModuleType("torch.npu")
    own = torch.ops.hypocenter_test_npu
    npu.__dict__.update(
        is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
        device_count=lambda: 1, current_device=lambda: 0, set_device=lambda device: None,
        synchronize=lambda *_: own.synchronize(),
        manual_seed=own.manual_seed, manual_seed_all=own.manual_seed,
        get_rng_state=lambda device="npu": own.rng_state(),
        set_rng_state=lambda state, device="npu": own.set_rng_state(state),
        Stream=functools.partial(torch.Stream, "npu"), Event=functools.partial(torch.Event, "npu"), stream=_on_stream,
        current_stream=lambda device=None: torch.accelerator.current_stream("npu"),
        default_stream=lambda device=None: _DEFAULT_STREAM[0], is_current_stream_capturing=is_capturing,
        NPUGraph=NPUGraph, graph=graph,
        memory_allocated=lambda device=None: own.memory_used(False), empty_cache=lambda: None,
        max_memory_allocated=lambda device=None: own.memory_used(True),
        reset_peak_memory_stats=lambda device=None: own.reset_peak(),
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        get_device_name=lambda device=None: "Ascend910B2",
        get_device_properties=lambda device=None: types.SimpleNamespace(name="Ascend910B2", total_memory=64 << 30),
        matmul=types.SimpleNamespace(allow_hf32=False), conv=types.SimpleNamespace(allow_hf32=True),
        utils=types.SimpleNamespace(is_support_inf_nan=lambda: True, get_cann_version=lambda: "8.2.RC1"),
    )  # fmt: skip
    torch._register_device_module("npu", npu)
    _DEFAULT_STREAM.append(torch.accelerator.current_stream("npu"))
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    return npu


_DEFAULT_STREAM: list[Any] = []


@contextlib.contextmanager
def _on_stream(stream: Any) -> Generator[None, None, None]:
    """`torch.npu.stream`: kernels go to this stream."""
    before = torch.accelerator.current_stream("npu")
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """What runs here in this thread stands for something that is neither counted nor waited for: a collective."""
    torch.ops.hypocenter_test_npu.quiet(True)
    try:
        yield
    finally:
        torch.ops.hypocenter_test_npu.quiet(False)


@contextlib.contextmanager
def capturing() -> Generator[None, None, None]:
    """A graph is captured, as CUDA's are: whatever waits for the device or reads its random state raises."""
    torch.ops.hypocenter_test_npu.capturing(True)
    try:
        yield
    finally:
        torch.ops.hypocenter_test_npu.capturing(False)


class NPUGraph:
    """`torch.npu.NPUGraph`: what is launched between begin and end is done again, on the same memory, by `replay`."""

    def __init__(self) -> None:
        self._number = -1

    def capture_begin(self) -> None:
        self._number = torch.ops.hypocenter_test_npu.begin_graph()

    def capture_end(self) -> None:
        torch.ops.hypocenter_test_npu.capturing(False)

    def replay(self) -> None:
        torch.ops.hypocenter_test_npu.replay_graph(self._number)


@contextlib.contextmanager
def graph(captured: NPUGraph) -> Generator[None, None, None]:
    """`torch.npu.graph`. What is launched in here has no values yet on a real device; here it has."""
    captured.capture_begin()
    try:
        yield
    finally:
        captured.capture_end()


@contextlib.contextmanager
def never_ready() -> Generator[None, None, None]:
    """The device is stuck (a collective that others do not join): nothing becomes ready, and who waits raises."""
    torch.ops.hypocenter_test_npu.never_ready(True)
    try:
        yield
    finally:
        torch.ops.hypocenter_test_npu.never_ready(False)


@contextlib.contextmanager
def limited_memory(more_bytes: int) -> Generator[None, None, None]:
    """The device has so many bytes more than are in use; then torch.OutOfMemoryError."""
    torch.ops.hypocenter_test_npu.limit_memory(torch.ops.hypocenter_test_npu.memory_used(False) + more_bytes)
    try:
        yield
    finally:
        torch.ops.hypocenter_test_npu.limit_memory(0)


def races() -> list[str]:
    """What kernels have read or written while another stream could still be at it, since the last call."""
    return torch.ops.hypocenter_test_npu.races()


class Syncs:
    """Counts what makes the host wait for the device while this is entered, and where in Python that was asked for.

    Attributes:
        by_kind: item, to_host, answer (a size or a bool), synchronize; and from_host, a copy to the device that waits.
        places: the kind, and the innermost lines outside torch (file name and number), the deepest first.
        n_kernels: that were launched.
    """

    def __init__(self, n_frames: int = 3) -> None:
        self.by_kind: Counter[str] = Counter()
        self.places: Counter[tuple[str, ...]] = Counter()
        self.n_kernels = 0
        self._n_frames = n_frames
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(self._note)

    def __enter__(self) -> Syncs:
        self.n_kernels -= torch.ops.hypocenter_test_npu.count("kernel")
        torch.ops.hypocenter_test_npu.on_sync(ctypes.cast(self._call, ctypes.c_void_p).value)
        return self

    def __exit__(self, *_: object) -> None:
        torch.ops.hypocenter_test_npu.on_sync(0)
        self.n_kernels += torch.ops.hypocenter_test_npu.count("kernel")

    @property
    def n(self) -> int:
        """How often the host has waited for the device."""
        return sum(n for kind, n in self.by_kind.items() if kind != "from_host")

    def _note(self, name: bytes) -> None:
        kind = name.decode()
        self.by_kind[kind] += 1
        frame: FrameType | None = sys._getframe(1)
        found: list[str] = []
        while frame is not None and len(found) < self._n_frames:
            path = Path(frame.f_code.co_filename)
            if "torch" not in path.parts:
                found.append(f"{path.name}:{frame.f_lineno}")
            frame = frame.f_back
        self.places[(kind, *found)] += 1
