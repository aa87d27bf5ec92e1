"""record/salvage.py: what the footer of a file tells is what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.record.salvage import Verdict, constant_columns, sealed_batches
from hypocenter.record.schema import encoded
from hypocenter.record.seal import write_sealed

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64(), nullable=False), pa.field("call", pa.int32(), nullable=False),
        pa.field("site", pa.string(), nullable=False), pa.field("lacks", pa.string()),
        pa.field("digest", pa.int64()), pa.field("replay", pa.bool_(), nullable=False),
        pa.field("sum", pa.float64(), nullable=False), pa.field("min", pa.float64()),
        pa.field("shape", pa.list_(pa.int64()), nullable=False), pa.field("sketch", pa.list_(pa.float32())),
    ]
)  # fmt: skip
REALS = st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "step": st.integers(0, 2), "call": st.integers(0, 1), "site": st.sampled_from(["", "a", "é" * 40]),
    "lacks": st.sampled_from([None, "", "b"]), "digest": st.sampled_from([None, -1, 2**62]), "replay": st.booleans(),
    "sum": REALS, "min": st.one_of(st.none(), REALS), "shape": st.lists(st.integers(0, 2), max_size=2),
    "sketch": st.one_of(st.none(), st.lists(st.sampled_from([0.0, 1.0]), max_size=2)),
}  # fmt: skip


@settings(max_examples=50, deadline=None)
@given(data=st.data(), n=st.integers(1, 6), constant=st.sets(st.sampled_from(sorted(VALUES))))
@pytest.mark.parametrize("schema", [SCHEMA, encoded(SCHEMA)], ids=["words", "encoded"])
def test_a_file_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, schema: pa.Schema, data: st.DataObject, n: int, constant: set[str]
) -> None:
    columns = {
        name: [data.draw(VALUES[name])] * n if name in constant else [data.draw(VALUES[name]) for _ in range(n)]
        for name in SCHEMA.names
    }
    written = pa.table(columns, SCHEMA)
    path = write_sealed(written, tmp_path_factory.mktemp("sealed") / "events-a-1.arrow", started_ns=1)

    verdict = Verdict()
    read = pa.Table.from_batches(sealed_batches(path, schema, verdict, projected=False), schema)

    assert verdict.problem == ""
    assert repr(read.to_pylist()) == repr(written.to_pylist())  # NaN and the sign of 0 as well


def test_of_a_column_with_one_value_nothing_is_read(tmp_path: Path) -> None:
    columns = {"step": [3, 3], "site": ["a", "a"], "sum": [1.0, 1.0], "digest": [None, None], "shape": [[], []],
               "call": [0, 1], "lacks": ["b", "b"], "replay": [True, True], "min": [None, None],
               "sketch": [None, None]}  # fmt: skip
    path = write_sealed(pa.table(columns, SCHEMA), tmp_path / "events-a-1.arrow", started_ns=1)

    with pq.ParquetFile(path) as file:
        known = constant_columns(file, 0, SCHEMA)

    assert known.keys() == set(SCHEMA.names) - {"call", "sum", "sketch"}
    assert {name: column.to_pylist() for name, column in known.items()} == {name: columns[name] for name in known}
