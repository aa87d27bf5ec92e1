"""MindRecord, read from its pages; the SQLite index beside it (`X.mindrecord.db`) says nothing more of the samples.

Layout, as `mindspore.mindrecord.FileWriter` of MindSpore 2.10 writes version 3.0 (measured on its files): size of the
header (u64, little-endian), the header as JSON, then from `header_size` on pages of `page_size` bytes. A page of
blobs holds rows, each its size (u64, little-endian) and its fields in the order of `blob_fields`; where several, each
has its size before it (u64, big-endian). A field of int32 or int64 is packed: number of values (u32, big-endian), two
bits for each value, the first in the highest bits (its width is 1, 2, 4 or 8 bytes), and the values, signed,
little-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from hypocenter.checklist.data.files.data_file import DataFile, DataFileError

KIND = "MindRecord"
_VERSION = "3.0"
_TYPES = {"int32": "<i4", "int64": "<i8", "float32": "<f4", "float64": "<f8"}  # of arrays; text and bytes are not read
_IDS = ("input_ids", "tokens", "ids", "text")  # names of the field that is a sample, the likeliest first
_MOST_HEADER = 1 << 27  # bytes; FileWriter allows 128 MiB
_LOOKED_AT = 1 << 16  # bytes of the header in which its own size stands
_U64, _U32 = 8, 4  # bytes

Bytes = npt.NDArray[np.uint8]


class _Field(msgspec.Struct):
    type: str


class _Schema(msgspec.Struct):
    schema: dict[str, _Field]
    blob_fields: list[str] = []


class _Page(msgspec.Struct):
    page_id: int
    page_size: int  # bytes of it that are used
    page_type: str
    start_row_id: int
    end_row_id: int


class _Header(msgspec.Struct):
    header_size: int
    page_size: int
    page: list[_Page]
    schema: list[_Schema]
    version: str
    shard_addresses: list[str] = []


def accepts(path: Path) -> bool:
    """Return whether it begins with a header of MindRecord, or is the index of such a file."""
    try:
        with _data(path).open("rb") as file:
            size = int.from_bytes(file.read(_U64), "little")
            start = file.read(_LOOKED_AT) if size <= _MOST_HEADER else b""
    except OSError:
        return False
    return start.startswith(b"{") and b'"header_size"' in start


def open_file(path: Path) -> DataFile:
    """Open one field of the rows as samples: the only array, or the one with a name for ids of tokens.

    Raises:
        DataFileError: damaged, of another version, or without an array of numbers.
    """
    path = _data(path)
    raw: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
    header = _header(raw, path)
    fields = header.schema[0].blob_fields
    arrays = {name: _TYPES.get(field.type) for name, field in header.schema[0].schema.items() if name in fields}
    name = _chosen({name: np.dtype(dtype) for name, dtype in arrays.items() if dtype is not None}, path)
    dtype = np.dtype(arrays[name])
    at = fields.index(name) if len(fields) > 1 else None
    starts, ends = _places(raw, header, at, path)
    lengths = _lengths(raw, starts, ends, dtype, path)

    def read(sample: int, start: int, stop: int) -> npt.NDArray[Any]:
        inside = raw[starts[sample] : ends[sample]]
        values = inside.view(dtype) if dtype.kind == "f" else _unpacked(inside, int(lengths[sample]), path)
        return values[start:stop]

    return DataFile(
        kind=KIND, path=path, dtype=dtype, lengths=lengths, read=read, notes=tuple(_notes(header, name)),
    )  # fmt: skip


def _data(path: Path) -> Path:
    return path.with_suffix("") if path.suffix == ".db" else path


def _header(raw: Bytes, path: Path) -> _Header:
    size = int.from_bytes(raw[:_U64].tobytes(), "little")
    try:
        header = msgspec.json.decode(raw[_U64 : _U64 + size].tobytes(), type=_Header)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _damaged(path, f"its header: {error}") from None
    if header.version != _VERSION or len(header.schema) != 1:
        raise _damaged(path, f"version {header.version[:20]} with {len(header.schema)} schemas is not read")
    return header


def _chosen(arrays: dict[str, np.dtype[Any]], path: Path) -> str:
    if not arrays:
        raise DataFileError("no field is an array of numbers", where=str(path), why=f"read are {', '.join(_TYPES)}")
    likeliest = [*(name for name in _IDS if name in arrays), *(name for name in arrays if arrays[name].kind == "i")]
    return next(iter([*likeliest, *arrays]))


def _notes(header: _Header, chosen: str) -> Iterator[str]:
    others = sorted(set(header.schema[0].schema) - {chosen})
    if others:
        yield f"the field {chosen} was compared, and not: {', '.join(others)}"
    if len(header.shard_addresses) > 1:
        yield f"one of {len(header.shard_addresses)} files that were written together"


def _places(
    raw: Bytes, header: _Header, field: int | None, path: Path
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return where the field of each row begins and ends in the file."""
    pages = sorted((page for page in header.page if page.page_type == "BLOB_DATA"), key=lambda page: page.start_row_id)
    if len({page.page_id for page in pages}) != len(pages):
        raise _damaged(path, "two pages lie at one place")
    found: list[npt.NDArray[np.int64]] = [np.empty((0, 2), dtype=np.int64)]
    n_rows = 0
    for page in pages:
        start = header.header_size + header.page_size * page.page_id
        n = page.end_row_id - page.start_row_id
        if not 0 <= page.page_size <= header.page_size or not 0 <= start <= raw.size - page.page_size:
            raise _damaged(path, f"page {page.page_id} lies outside the file")
        if page.start_row_id != n_rows or not 0 <= n <= page.page_size // _U64:
            raise _damaged(path, f"page {page.page_id} cannot hold rows {page.start_row_id} to {page.end_row_id}")
        found.append(np.array([*_rows(raw[start : start + page.page_size], start, n, field, path)]).reshape(-1, 2))
        n_rows += n
    places = np.concatenate(found).astype(np.int64)
    return places[:, 0], places[:, 1]


def _rows(page: Bytes, start: int, n: int, field: int | None, path: Path) -> Iterator[tuple[int, int]]:
    at = 0
    for _ in range(n):
        begin, end = _sized(page, at, page.size, "little", path)
        at = row_end = end
        if field is not None:
            end = begin
            for _ in range(field + 1):
                begin, end = _sized(page, end, row_end, "big", path)
        yield start + begin, start + end
    if at != page.size:
        raise _damaged(path, f"a page holds more than its {n} rows")


def _sized(page: Bytes, at: int, limit: int, order: Literal["little", "big"], path: Path) -> tuple[int, int]:
    """Return where the bytes after a size begin and end."""
    begin = at + _U64
    end = begin + int.from_bytes(page[at:begin].tobytes(), order)
    if end > limit:
        raise _damaged(path, "a row or a field is longer than what holds it")
    return begin, end


def _lengths(raw: Bytes, starts: Any, ends: Any, dtype: np.dtype[Any], path: Path) -> npt.NDArray[np.int64]:
    """Return the number of values in each row's field; more packed values than bytes raise an error."""
    if dtype.kind == "f":
        if ((ends - starts) % dtype.itemsize).any():
            raise _damaged(path, f"a field is no whole number of {dtype}")
        return (ends - starts) // dtype.itemsize
    if (ends - starts < _U32).any():
        raise _damaged(path, "a field is shorter than its number of values")
    counts = raw[starts[:, None] + np.arange(_U32)] if len(starts) else np.empty((0, _U32), dtype=np.uint8)
    lengths = np.ascontiguousarray(counts).view(">u4").reshape(-1).astype(np.int64)
    if (lengths > ends - starts - _U32).any():
        raise _damaged(path, "a field has fewer bytes than values")
    return lengths


def _unpacked(field: Bytes, n: int, path: Path) -> npt.NDArray[np.int64]:
    n_codes = (n + 3) // 4
    packed = field[_U32 : _U32 + n_codes]
    codes = ((packed[:, None] >> np.array([6, 4, 2, 0], dtype=np.uint8)) & 3).reshape(-1)[:n]
    widths = np.left_shift(np.int64(1), codes.astype(np.int64))
    ends = np.cumsum(widths)
    values = np.ascontiguousarray(field[_U32 + n_codes :])
    if len(codes) < n or (int(ends[-1]) if n else 0) != len(values):
        raise _damaged(path, "the widths of a field's values do not add up to its bytes")
    found = np.empty(n, dtype=np.int64)
    for width in (1, 2, 4, 8):
        is_one = widths == width
        at = (ends - widths)[is_one]
        found[is_one] = values[at[:, None] + np.arange(width)].view(f"<i{width}").reshape(-1)
    return found


def _damaged(path: Path, why: str) -> DataFileError:
    return DataFileError("cannot read the MindRecord", where=str(path), why=why)
