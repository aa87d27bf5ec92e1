"""Keep pyarrow from importing pandas: a second of each process, and 50 MB, for values that are never of pandas."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from functools import cache
from importlib.abc import MetaPathFinder
from types import ModuleType

from hypocenter.post_import_finder import PostImportFinder


class _NotThere(MetaPathFinder):
    """Finds no pandas for the thread that made this."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("pandas is left out", name="pandas")


@cache  # pyarrow looks once, and so a process that reads many recordings has one finder
def leave_pandas_out() -> None:
    """Let pyarrow look for pandas now, and find none; it looks again once something else has imported pandas.

    The program that this process is of can use both, together and in whatever order it imports them.
    """
    import pyarrow as pa

    if "pandas" in sys.modules or not hasattr(pa.lib, "_pandas_api"):
        return
    finder = _NotThere()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)
    sys.meta_path.insert(0, PostImportFinder("pandas", _look_again))


def _look_again() -> None:
    from pyarrow.lib import _pandas_api

    try:
        _ = _pandas_api.version  # of what has looked already, the only thing that looks once more
    except Exception:  # a pandas that pyarrow cannot use: said when it is asked to
        return
