"""Keep pyarrow from importing pandas: 0.3 s of each reading process, for values that are never of pandas."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _NotThere(MetaPathFinder):
    """Finds no pandas."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out", name="pandas")


def leave_pandas_out() -> None:
    """Let pyarrow look for pandas now, once and for all of this process, and find none.

    Only for processes that are ours: afterwards `to_pandas` raises ImportError. Pandas itself can still be imported.
    """
    if "pandas" in sys.modules:
        return
    finder = _NotThere()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
