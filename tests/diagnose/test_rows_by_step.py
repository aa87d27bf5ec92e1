"""diagnose/rows_by_step.py: what comes rank by rank is taken step by step, whole and in order."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.diagnose import rows_by_step as module
from hypocenter.diagnose.rows_by_step import RowsByStep

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=20)


def table(rank: int, rows: list[tuple[int, int]]) -> pa.Table:
    return pa.table(
        {
            "step": pa.array([step for step, _ in rows], pa.int64()),
            "order": pa.array([order for _, order in rows], pa.int64()),
            "rank": pa.array([rank] * len(rows), pa.int32()),
        }
    )


@settings(max_examples=80, deadline=None)
@given(
    ranks=st.lists(ROWS, min_size=1, max_size=6),
    at_once=st.sampled_from([1, 7, 1000]),
    size=st.sampled_from([64, 1 << 20]),
    block=st.sampled_from([1, 20, 1000]),
)
def test_every_row_is_given_back_by_step_rank_and_order(
    ranks: list[list[tuple[int, int]]], at_once: int, size: int, block: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS_AT_ONCE", at_once)
        patch.setattr(module, "_IN_MEMORY_BYTES", size)
        patch.setattr(module, "_ROWS_OF_BLOCK", block)
        shelf = RowsByStep(len(ranks))
        for rank, rows in enumerate(ranks):
            shelf.put(table(rank, rows))

        found = [(step, *row) for step in shelf.steps() for row in _rows(shelf.take(step))]

    expected = sorted((step, rank, order) for rank, rows in enumerate(ranks) for step, order in rows)
    assert found == expected
    shelf.close()


def _rows(taken: pa.Table) -> list[tuple[int, int]]:
    return list(zip(taken["rank"].to_pylist(), taken["order"].to_pylist(), strict=True))


def test_a_step_without_rows_is_an_empty_table_of_the_same_columns() -> None:
    shelf = RowsByStep()
    shelf.put(table(0, [(1, 1)]))

    assert shelf.take(7).schema == table(0, []).schema
    assert shelf.take(7).num_rows == 0
