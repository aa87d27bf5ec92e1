"""record/schema.py: the columns are frozen, and what goes in comes out."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.nouns import Phase, Reading, Source, StepRecord, Summary
from hypocenter.record.repair import mended_column, mended_rows
from hypocenter.record.schema import (
    READINGS,
    STEPS,
    batch_of,
    reading_row,
    readings_batch,
    readings_from,
    step_row,
    steps_batch,
    steps_from,
)

FROZEN_READINGS = """
    step microbatch phase site port order call dtype shape module names op recompute replay literal_inf digest placement
    lacks
    source_file source_line source_text source_function
    n n_nan n_posinf n_neginf n_hist n_zero n_subnormal min max absmin absmax sum sumsq hist_first hist sketch
    row_digests shares
"""
FROZEN_STEPS = "step n_microbatches loss grad_norm loss_scale lr skipped step_ms tap_ms n_bad_grads finding"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
counts = st.integers(0, 2**63 - 1)
reals = st.floats(allow_nan=False)
summaries = st.builds(
    Summary,
    n=counts, n_nan=counts, n_posinf=counts, n_neginf=counts, n_hist=counts, n_zero=counts, n_subnormal=counts,
    min=st.none() | reals, max=st.none() | reals, absmin=st.none() | reals, absmax=reals, sum=reals, sumsq=reals,
    hist_first=st.integers(-2000, 2000), hist=st.lists(counts, max_size=40).map(tuple),
    sketch=st.none() | st.lists(st.floats(width=32, allow_nan=False), max_size=16).map(tuple),
)  # fmt: skip
readings = st.builds(
    Reading,
    step=counts, microbatch=st.integers(0, 2**31 - 1), phase=st.sampled_from(get_args(Phase)), site=texts, port=texts,
    order=counts, call=st.integers(0, 2**31 - 1), dtype=texts, shape=st.lists(counts, max_size=5).map(tuple),
    summary=summaries, module=texts, names=st.lists(texts, max_size=3).map(tuple), op=texts,
    source=st.none() | st.builds(Source, file=texts, line=st.integers(0, 10**6), text=texts, function=texts),
    recompute=st.booleans(), replay=st.booleans(), literal_inf=st.booleans(),
    digest=st.none() | st.integers(-(2**63), 2**63 - 1), placement=texts, lacks=texts,
)  # fmt: skip
steps = st.builds(
    StepRecord,
    step=counts, n_microbatches=st.integers(0, 2**31 - 1), loss=st.none() | reals, grad_norm=st.none() | reals,
    loss_scale=st.none() | reals, lr=st.none() | reals, skipped=st.booleans(), step_ms=reals, tap_ms=reals,
    n_bad_grads=counts, finding=texts,
)  # fmt: skip


def test_column_names_are_frozen() -> None:
    assert FROZEN_READINGS.split() == READINGS.names
    assert FROZEN_STEPS.split() == STEPS.names


def test_every_field_of_the_nouns_has_a_column() -> None:
    own = {f.name for f in fields(Reading)} - {"summary", "source"}
    source = {f"source_{f.name}" for f in fields(Source)}
    summary = {f.name for f in fields(Summary)}

    assert own | source | summary == set(READINGS.names)
    assert {f.name for f in fields(StepRecord)} == set(STEPS.names)


@settings(max_examples=60, deadline=None)
@given(st.lists(readings, max_size=4))
def test_readings_come_back_as_they_went_in(rows: list[Reading]) -> None:
    assert list(readings_from(readings_batch(rows))) == rows


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=4))
def test_steps_come_back_as_they_went_in(rows: list[StepRecord]) -> None:
    assert list(steps_from(steps_batch(rows))) == rows


@settings(max_examples=40, deadline=None)
@given(st.lists(readings, max_size=3), st.lists(steps, max_size=3))
def test_repair_changes_nothing_that_is_whole(some: list[Reading], others: list[StepRecord]) -> None:
    rows, records = list(map(reading_row, some)), list(map(step_row, others))

    assert batch_of(READINGS, rows, mended_column).equals(readings_batch(some))
    assert batch_of(STEPS, records, mended_column).equals(steps_batch(others))
    assert batch_of(READINGS, mended_rows(some)).equals(readings_batch(some))
    assert batch_of(STEPS, mended_rows(others)).equals(steps_batch(others))


def test_nan_and_infinities_are_not_missing_values() -> None:
    values = (math.nan, math.inf, -math.inf, None)

    back = list(steps_from(steps_batch([StepRecord(step=i, loss=v) for i, v in enumerate(values)])))

    assert math.isnan(back[0].loss or 0.0)
    assert [b.loss for b in back[1:]] == [math.inf, -math.inf, None]


def test_a_sketch_may_be_an_array() -> None:
    sketch = np.arange(256, dtype=np.float32)
    row = Reading(step=0, microbatch=0, phase="grad", site="w", port="grad", order=0, summary=Summary(sketch=sketch))

    (back,) = readings_from(readings_batch([row]))

    assert back.summary.sketch == tuple(float(i) for i in range(256))


@pytest.mark.parametrize("value", [None, "caf\udce9", 3])
def test_the_fast_way_refuses_what_is_no_text(value: object) -> None:
    row = Reading(step=0, microbatch=0, phase="grad", site=value, port="grad", order=0)

    with pytest.raises(Exception):  # noqa: B017  (of any class: the writer then repairs)
        readings_batch([row])
