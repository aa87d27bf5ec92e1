"""Errors of a device, not of the line that they surface at. Needs no torch.

Kernels run later than they are called, and their error is told to whoever asks the device next, which is often us. They
are recognised here alone, for every maker's device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_MOST_CAUSES = 8  # exceptions that one was raised from
_DEAD = (
    "device-side assert", "illegal memory access", "illegal instruction", "illegal address", "misaligned address",
    "invalid program counter", "invalid address space", "hardware stack error", "unspecified launch failure",
    "launch timed out", "uncorrectable ecc", "uncorrectable nvlink", "peer gpu memory over nvlink",
    "cublas_status_execution_failed", "cudnn_status_execution_failed",
    "hsa_status_error", "memory access fault by gpu", "error code is 507", "stream synchronize failed",
    "aicore exception", "aicpu exception", "vector core exception", "native api failed", "device lost",
)  # fmt: skip
"""What CUDA (errors 214, 220, 700 to 719), HIP, CANN (507xxx, as torch_npu words them) and SYCL call a device that
gives no more results. Errors of one call (an invalid argument, no kernel for this device) are not among them."""
_ABORTED = (
    "nccl communicator was aborted", "nccl error", "ncclremoteerror", "ncclsystemerror", "ncclunhandledcudaerror",
    "watchdog caught collective operation timeout", "hccl error", "hccl function error", "hccl communicator",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceError:
    """An error of a device or of a collective: what broke, the exception's type and its text."""

    kind: Literal["device", "collective"]
    type: str  # of the exception
    text: str  # on one line

    @property
    def title(self) -> str:
        """What was seen, in words."""
        return "an aborted collective" if self.kind == "collective" else "a device error"


def device_error(error: BaseException | None) -> DeviceError | None:
    """Return what of a device or a collective broke; None for all other errors, such as out of memory."""
    for each in _chain(error):
        text = " ".join(str(each).split())
        low = text.lower()
        if "out of memory" in low:
            return None
        if any(words in low for words in _DEAD):
            return DeviceError(kind="device", type=type(each).__name__, text=_first_sentence(text))
        if any(words in low for words in _ABORTED) or _is_of_backend(each):
            return DeviceError(kind="collective", type=type(each).__name__, text=_first_sentence(text))
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_MOST_CAUSES):
        if error is None:
            return
        if isinstance(error, RuntimeError):  # torch.AcceleratorError and DistBackendError are
            yield error
        error = error.__cause__ or error.__context__


def _is_of_backend(error: BaseException) -> bool:
    kind = getattr(sys.modules.get("torch.distributed"), "DistBackendError", None)
    return isinstance(kind, type) and isinstance(error, kind)


def _first_sentence(text: str) -> str:
    """Cut off the advice that torch adds to an error, which is about no step of this run."""
    for advice in (
        "CUDA kernel errors might",
        "Search for",
        "Compile with",
        "For debugging",
        "HIP kernel errors might",
    ):
        text = text.partition(advice)[0]
    return text.strip()[:300]
