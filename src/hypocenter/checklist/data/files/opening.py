"""Which kind a data file is, told by its content."""

from __future__ import annotations

from pathlib import Path

from hypocenter.checklist.data.files import megatron, mindrecord, npy
from hypocenter.checklist.data.files.data_file import DataFile

_KINDS = (megatron, npy, mindrecord)


def open_data_file(path: Path) -> DataFile | None:
    """The file as samples, or None if it is no data file of a known kind.

    Raises:
        DataFileError: it is one, and damaged.
    """
    found = next((kind for kind in _KINDS if kind.recognizes(path)), None)
    return found.open_file(path) if found is not None else None
