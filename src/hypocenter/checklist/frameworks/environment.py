"""Environment variables that a launch script exports: which of them ask for the same sums every time."""

from __future__ import annotations

from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.words import boolean


@framework("environment")
def settle(sheet: FileEntries) -> None:
    """HCCL's and Transformer Engine's switches of determinism."""
    if sheet.says("HCCL_DETERMINISTIC"):
        word = boolean(sheet.value("HCCL_DETERMINISTIC"))
        sheet.set("other.deterministic", bool(word) if isinstance(word, bool) else True, "HCCL_DETERMINISTIC")
    elif sheet.says("NVTE_ALLOW_NONDETERMINISTIC_ALGO"):
        allowed = boolean(sheet.value("NVTE_ALLOW_NONDETERMINISTIC_ALGO"))
        sheet.set("other.deterministic", not allowed, "NVTE_ALLOW_NONDETERMINISTIC_ALGO")
    if sheet.says("MS_DEV_GRAPH_KERNEL_FLAGS"):
        sheet.set("other.graph_fusion", True, "MS_DEV_GRAPH_KERNEL_FLAGS")
