"""`threads=N`: kernels of the CPU run on N threads, unless the program says otherwise."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms  # pyright: ignore[reportMissingImports]


def begin(value: str, note: Callable[[str], None]) -> None:
    """Set the number of threads."""
    ms.set_context(runtime_num_threads=int(value))
    note(f"{value} threads")
