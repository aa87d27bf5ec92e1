"""What to type to look at devices and at the communication library, by torch's backend; gloo has none of that."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Commands of one make of devices."""

    library: str
    look: str  # at the devices of a host
    pace: str  # why one is slow
    errors: str  # of memory and links
    log: str  # makes the library say what it does


BY_BACKEND = {
    "nccl": Tools(
        library="NCCL",
        look="nvidia-smi",
        pace="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,CLOCK",
        errors="nvidia-smi -q -d ECC,PAGE_RETIREMENT; dmesg | grep -i xid",
        log="export NCCL_DEBUG=INFO",
    ),
    "hccl": Tools(  # Ascend: npu-smi command reference; CANN: log reference
        library="HCCL",
        look="npu-smi info",
        pace="npu-smi info -t common -i 0",
        errors="npu-smi info -t ecc -i 0; npu-smi info -t health -i 0",
        log="export ASCEND_GLOBAL_LOG_LEVEL=1 ASCEND_SLOG_PRINT_TO_STDOUT=1",
    ),
}
