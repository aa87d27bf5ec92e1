"""Which kind a data file is, told by its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypocenter.catalogue import Catalogue, having
from hypocenter.checklist.data.files.data_file import DataFile
from hypocenter.recognising import recognised

_KINDS: Catalogue[Any] = Catalogue("hypocenter.checklist.data.files", entry=having("accepts"))


def open_data_file(path: Path) -> DataFile | None:
    """The file as samples, or None if it is no data file of a known kind.

    Raises:
        DataFileError: it is one, and damaged.
    """
    found = recognised(_KINDS, path)
    return found.open_file(path) if found is not None else None
