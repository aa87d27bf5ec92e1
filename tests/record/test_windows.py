"""record/windows.py: windows are a monoid, and say what their rows said."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record import windows
from hypocenter.record.schema import readings_batch, steps_batch

_VALUES = st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(0.0))


def reading(step: int, site: str, value: float) -> Reading:
    if math.isnan(value):
        return Reading(step=step, microbatch=0, phase="grad", site=site, port="grad", order=0,
                       summary=Summary(n=4, n_nan=1), digest=step)  # fmt: skip
    size = abs(value)
    return Reading(step=step, microbatch=0, phase="grad", site=site, port="grad", order=0,
                   summary=Summary(n=4, sumsq=size * size, sum=value, min=value, max=value, absmax=size))  # fmt: skip


def table(rows: list[Reading]) -> pa.Table:
    return pa.Table.from_batches([readings_batch(rows)])


def ordered(found: pa.Table) -> list[dict[str, object]]:
    return found.sort_by([("site", "ascending"), ("step", "ascending")]).to_pylist()


def nearly(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{k: pytest.approx(v) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 25_000), st.sampled_from("ab"), _VALUES), min_size=1, max_size=60),
    st.integers(0, 60),
    st.sampled_from([100, 10_000]),
)
def test_windows_of_parts_merge_into_windows_of_the_whole(
    values: list[tuple[int, str, float]], at: int, width: int
) -> None:
    rows = [reading(*value) for value in values]
    parts = [windows.of_readings(table(part)) for part in (rows[:at], rows[at:]) if part]

    whole = windows.of_readings(table(rows), width)

    assert ordered(windows.merge(parts, width)) == nearly(ordered(whole))


def test_a_window_holds_count_extremes_spread_and_where() -> None:
    rows = [reading(step, "w", value) for step, value in ((100, 3.0), (150, 1.0), (199, 5.0), (200, 9.0))]

    first, second = windows.of_readings(table(rows)).to_pylist()

    assert (first["step"], first["last_step"], first["n_rows"], first["n"], first["n_sized"]) == (100, 199, 3, 12, 3)
    assert (first["least"], first["least_step"], first["most"], first["most_step"]) == (1.0, 150, 5.0, 199)
    assert (first["total"], first["sumsq"], first["min"], first["max"]) == (9.0, 35.0, 1.0, 5.0)
    assert (second["step"], second["most"]) == (200, 9.0)


def test_what_is_not_finite_is_counted_and_has_no_size() -> None:
    (row,) = windows.of_readings(table([reading(0, "w", math.nan), reading(1, "w", 2.0)])).to_pylist()

    assert (row["n_nan"], row["n_rows"], row["n_sized"], row["least"], row["most"]) == (1, 2, 1, 2.0, 2.0)


def test_windows_of_step_records_leave_out_what_was_not_recorded() -> None:
    records = [
        StepRecord(step=0, loss=1.0), StepRecord(step=1), StepRecord(step=2, loss=math.inf, skipped=True),
        StepRecord(step=3, loss=-2.0),
    ]  # fmt: skip
    found = windows.of_steps(pa.Table.from_batches([steps_batch(records)])).to_pylist()
    by_site = {row["site"]: row for row in found}

    assert by_site["loss"]["n_rows"] == 3
    assert (by_site["loss"]["n_posinf"], by_site["loss"]["least"], by_site["loss"]["most_step"]) == (1, -2.0, 0)
    assert by_site["skipped"]["total"] == 1.0
    assert "grad_norm" not in by_site


def test_digests_of_the_same_steps_add_up_whatever_the_order() -> None:
    rows = [reading(step, "w", math.nan) for step in range(50)]
    parts = [windows.of_readings(table(rows[i::3])) for i in range(3)]
    other = [*rows[:-1], reading(51, "w", math.nan)]

    together = windows.merge(parts, 100)["digest"].to_pylist()
    assert together == windows.of_readings(table(rows))["digest"].to_pylist()
    assert together != windows.of_readings(table(other))["digest"].to_pylist()
    assert np.all([each is not None for each in together])
