"""Columns of a Parquet file that hold one value only, by what its footer says of them: nothing of them is read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_IN_LISTS = ".list.element"
_STORED = {pa.int64(): "INT64", pa.int32(): "INT32", pa.bool_(): "BOOLEAN", pa.string(): "BYTE_ARRAY"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What is asked about one column of a schema."""

    kind: pa.DataType
    stored: str  # physical type; "" of reals: smallest and largest leave NaN out, and tell nothing of the sign of 0
    empty: Any  # its value where a file has none
    may_be_empty: bool


def constant_columns(file: pq.ParquetFile, group: int, schema: pa.Schema) -> dict[str, pa.Array]:
    """Return the constant columns of one row group of a file, in the types of `schema`.

    Args:
        file: open.
        group: number of the row group.
        schema: columns that are wanted; a file may hold others, and lack some.
    """
    found: dict[str, pa.Array] = {}
    footer, known = file.metadata.row_group(group), _known(schema)
    n = footer.num_rows
    for at in range(footer.num_columns):
        column = footer.column(at)
        name: str = column.path_in_schema
        about = known.get(name)
        if about is None or not column.is_stats_set:
            continue
        told = column.statistics
        if told.has_min_max:
            if told.null_count or column.physical_type != about.stored or told.min != told.max:
                continue
            value = told.min
        elif about.may_be_empty and told.null_count == column.num_values == n:
            value = about.empty
        else:
            continue
        found[name.removesuffix(_IN_LISTS)] = _filled(about.kind, value, n)
    return found


@lru_cache(maxsize=16)
def _known(schema: pa.Schema) -> dict[str, _Known]:
    """Return what is asked about each column, by its path in a file."""
    found: dict[str, _Known] = {}
    for field in schema:
        is_list = pa.types.is_list(field.type)
        plain = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        found[field.name + _IN_LISTS * is_list] = _Known(
            kind=field.type, stored=_STORED.get(plain, ""), empty=None if field.nullable else (),
            may_be_empty=field.nullable != is_list,  # of a list that may be missing an empty one looks like none
        )  # fmt: skip
    return found


@lru_cache(maxsize=64)
def _filled(kind: pa.DataType, value: Any, n: int) -> pa.Array:
    if value is None:
        return pa.nulls(n, kind)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.nulls(0, kind.value_type))
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, kind.index_type), n), pa.array([value]))
    return pa.repeat(pa.scalar(value, kind), n)
