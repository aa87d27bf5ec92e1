"""The zip file that torch.save writes: a pickle beside its storages, which lie uncompressed and are read in place."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypocenter.compare.weights.checkpoint import CheckpointError, StoredTensor, reach
from hypocenter.compare.weights.elements import item_bytes
from hypocenter.compare.weights.unpickler import AT_MOST_BYTES, TensorRef, loads

_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of name and extra field: APPNOTE.TXT 4.3.7
_IS_ENCRYPTED = 1


class _Window(io.RawIOBase):
    """A range of bytes of a file, which reads like a file."""

    def __init__(self, path: Path, start: int, size: int) -> None:
        self._file = path.open("rb")
        self._start, self._size, self._at = start, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        if self._at < 0:
            raise OSError(22, "before the start")
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        n = max(0, min(len(buffer), self._size - self._at))
        self._file.seek(self._start + self._at)
        data = self._file.read(n)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """An object that torch.save wrote, without the values of its tensors."""

    path: Path
    content: Any  # as `unpickler.loads` gives it
    storages: dict[str, tuple[int, int]]  # key -> first byte in the file, bytes
    is_big_endian: bool

    def tensor(self, ref: TensorRef, name: str) -> StoredTensor:
        """Return the tensor where it lies. Raises CheckpointError when its storage does not hold all of it."""
        where = f"{self.path}: {name}"
        start, size = self.storages.get(ref.storage.key, (0, -1))
        if size < 0:
            raise CheckpointError("a tensor's storage is missing", where=where, why=f"no data/{ref.storage.key}")
        needed = (ref.offset + reach(ref.shape, ref.strides)) * item_bytes(ref.dtype)
        if needed > size and 0 not in ref.shape:
            why = f"it needs {needed:,} bytes, its storage has {size:,}"
            raise CheckpointError("a tensor is larger than its storage", where=where, why=why)
        return StoredTensor(
            shape=ref.shape, dtype=ref.dtype, path=self.path, offset=start + ref.offset * item_bytes(ref.dtype),
            strides=ref.strides, is_big_endian=self.is_big_endian,
        )  # fmt: skip


def is_archive(path: Path) -> bool:
    """Return whether the file begins as a zip file does."""
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


def open_archive(path: Path, start: int = 0, size: int | None = None) -> Archive:
    """Read the pickle and the places of the storages.

    Args:
        path: of the file.
        start: first byte of the archive.
        size: its bytes; to the end of the file when not given.

    Raises:
        CheckpointError: it is damaged, compressed, or its pickle asks for more than data.
    """
    size = path.stat().st_size - start if size is None else size
    try:
        with _Window(path, start, size) as window, zipfile.ZipFile(window) as archive:
            return _opened(path, start, size, window, archive)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError("the torch file is damaged", where=str(path), why=error.strerror or str(error)) from error
    except Exception as error:  # of garbage zipfile raises many things
        why = f"{type(error).__name__}: {error}"[:200]
        raise CheckpointError("the torch file is damaged", where=str(path), why=why, fix="copy it again") from error


def _opened(path: Path, start: int, size: int, window: _Window, archive: zipfile.ZipFile) -> Archive:
    pickles = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError("no torch file", where=str(path), why="a zip file with no data.pkl, or with several")
    root = pickles[0].filename.removesuffix("data.pkl")
    if any(info.filename.startswith(f"{root}code/") for info in archive.infolist()):
        raise CheckpointError(
            "a TorchScript program, not weights", where=str(path), fix="save its state_dict: torch.save(m.state_dict())"
        )
    places: dict[str, tuple[int, int]] = {}
    for info in archive.infolist():
        if info.filename.startswith(f"{root}data/"):
            at = _place(window, info, size, path)
            places[info.filename.removeprefix(f"{root}data/")] = (start + at, info.file_size)
    if pickles[0].file_size > AT_MOST_BYTES:
        raise CheckpointError("the pickle is too large", where=str(path), why=f"{pickles[0].file_size:,} bytes")
    at = _place(window, pickles[0], size, path)
    window.seek(at)
    content = loads(window.read(pickles[0].file_size) or b"", str(path))
    names = set(archive.namelist())
    order = archive.read(f"{root}byteorder")[:8] if f"{root}byteorder" in names else b"little"
    return Archive(path=path, content=content, storages=places, is_big_endian=order == b"big")


def _place(window: _Window, info: zipfile.ZipInfo, size: int, path: Path) -> int:
    """Return the offset of an entry's content, which must be stored uncompressed."""
    where = f"{path}: {info.filename[:100]}"
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & _IS_ENCRYPTED:
        raise CheckpointError("a compressed torch file", where=where, why="torch.save does not compress")
    window.seek(info.header_offset)
    header = window.read(_LOCAL_HEADER.size + 0) or b""
    if len(header) < _LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
        raise CheckpointError("the torch file is damaged", where=where, why="an entry has no header")
    _, n_name, n_extra = _LOCAL_HEADER.unpack(header)
    at = info.header_offset + _LOCAL_HEADER.size + n_name + n_extra
    if at + info.file_size > size or info.file_size != info.compress_size:
        raise CheckpointError("the torch file is cut off", where=where, why=f"{info.file_size:,} bytes are not there")
    return at
