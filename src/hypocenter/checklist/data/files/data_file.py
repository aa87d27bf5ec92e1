"""A file of training data as the comparison sees it: samples of numbers, read in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hypocenter.catalogue import Catalogue, having
from hypocenter.errors import HypocenterError
from hypocenter.recognising import recognised

Values = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int64]
PIECE = 1 << 20  # values in memory at a time, 8 MiB of each side
_KINDS: Catalogue[Any] = Catalogue("hypocenter.checklist.data.files", entry=having("accepts"))


class DataFileError(HypocenterError):
    """A data file that is cut off, damaged, or of a layout that is not read."""

    slug = "bad-data-file"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """Samples by number. A stream is one sample that a loader cuts later."""

    kind: str  # "Megatron indexed dataset"
    path: Path
    dtype: np.dtype[Any]
    lengths: Lengths  # values of each sample; may be a view that takes no memory
    read: Callable[[int, int, int], npt.NDArray[Any]]  # sample, start, stop -> its values, as the file holds them
    is_stream: bool = False
    n_documents: int | None = None  # of kinds that mark where documents end
    notes: tuple[str, ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether it holds fractions instead of ids."""
        return self.dtype.kind == "f"


def pieces(file: DataFile, sample: int, start: int = 0, piece: int = PIECE) -> Iterator[Values]:
    """Yield a sample's values from a position on, at most `piece` at a time; fractions as bits of a float64."""
    end = int(file.lengths[sample])
    for at in range(start, end, piece):
        yield comparable(file.read(sample, at, min(at + piece, end)), file.path)


def comparable(values: npt.NDArray[Any], path: Path) -> Values:
    """Return the values in one type for all files, so that int32 and uint16 compare by what they hold."""
    if values.dtype.kind == "f":
        return np.ascontiguousarray(values, dtype=np.float64).view(np.int64)
    if values.dtype == np.uint64 and values.size and int(values.max()) > np.iinfo(np.int64).max:
        raise DataFileError("a value is larger than any id", where=str(path), why="it needs the 64th bit of a uint64")
    return np.ascontiguousarray(values, dtype=np.int64)


def digests(file: DataFile) -> npt.NDArray[np.uint64]:
    """Return 64 bits of BLAKE2b (RFC 7693) of each sample's values: 8 bytes a sample are all that is kept."""
    found = np.empty(len(file.lengths), dtype=np.uint64)
    for sample in range(len(found)):
        hashed = hashlib.blake2b(digest_size=8)
        for piece in pieces(file, sample):
            hashed.update(piece.tobytes())
        found[sample] = int.from_bytes(hashed.digest(), "little")
    return found


def open_data_file(path: Path) -> DataFile | None:
    """Open the file as samples; None if it is no data file of a known kind.

    Raises:
        DataFileError: it is one, and damaged.
    """
    found = recognised(_KINDS, path)
    return found.open_file(path) if found is not None else None
