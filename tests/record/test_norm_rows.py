"""record.norm_rows: norms laid out in columns at once are the rows that they stand for."""

from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.block import Block
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.record.reader import open_run
from hypocenter.record.schema import reading_row, readings_batch, readings_from
from hypocenter.record.writer import Writer
from hypocenter.session.check import scalar_reading

NORMS = st.lists(st.floats(0.0, 1e30) | st.sampled_from([math.inf, math.nan]), min_size=1, max_size=8)


def unmended(error: Exception) -> None:
    raise error


def template(n: int) -> NormTemplate:
    return NormTemplate(
        [
            Reading(step=0, microbatch=0, phase="grad", site=f"layer.{i}.weight", port="grad", order=0,
                    dtype="bfloat16", shape=(i, 2), summary=Summary(n=2 * i))
            for i in range(n)
        ]
    )  # fmt: skip


def rows_of(norms: list[float], **more: int) -> NormRows:
    bad = frozenset(i for i, norm in enumerate(norms) if not math.isfinite(norm))
    told = {"step": 7, "first_order": 3, **more}
    return NormRows(template(len(norms)), norms=norms, bad=bad, **told)


@given(NORMS)
def test_columns_and_rows_are_the_same(norms: list[float]) -> None:
    rows = rows_of(norms)

    batch = rows.template.batch([rows], unmended)

    assert batch.equals(readings_batch(list(rows)))
    assert list(readings_from(batch)) == list(rows) == rows[:]


NUMBERS = st.lists(st.floats() | st.sampled_from([0.0, -0.0, -math.inf]), min_size=1, max_size=4)


@given(NORMS, NUMBERS)
def test_numbers_of_the_run_come_after_the_norms(norms: list[float], numbers: list[float]) -> None:
    scalars = [scalar_reading(f"loss.{i}", "loss", value, 7, 3 + len(norms) + i, i) for i, value in enumerate(numbers)]
    both = NormTemplate([*template(len(norms)).rows, *scalars])
    bad = frozenset(i for i, norm in enumerate(norms) if not math.isfinite(norm))
    rows = NormRows(both, step=7, first_order=3, norms=[*norms, *numbers], bad=bad)

    batch = both.batch([rows, rows], unmended)

    assert list(rows) == [*rows_of(norms), *scalars]
    assert batch.equals(readings_batch([*rows, *rows]))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), max_size=12))
def test_a_block_holds_what_it_was_given_in_that_order(writes: list[tuple[int, int]]) -> None:
    """Each write: that many readings, then the norms of that many parameters, none for 0."""
    block, given_rows = Block(unmended), []
    templates = {n: template(n) for n in (1, 2, 3)}
    for step, (n_readings, n_norms) in enumerate(writes):
        readings = [
            Reading(step=step, microbatch=i, phase="loss", site="loss", port="value", order=i)
            for i in range(n_readings)
        ]
        values = [float(step + i) for i in range(n_norms)]
        norms = (
            NormRows(templates[n_norms], step=step, first_order=9, norms=values, bad=frozenset()) if values else None
        )
        block.add(list(map(reading_row, readings)), norms, [])
        given_rows += [*readings, *(norms or ())]

    batch = block.events()

    assert list(readings_from(batch) if batch is not None else ()) == given_rows


@given(NORMS)
def test_a_row_tells_the_norm_or_that_it_is_bad(norms: list[float]) -> None:
    rows = rows_of(norms, step=9, first_order=4)

    for i, (row, norm) in enumerate(zip(rows, norms, strict=True)):
        assert (row.step, row.order, row.site, row.summary.n) == (9, 4 + i, f"layer.{i}.weight", 2 * i)
        if math.isfinite(norm):
            assert (row.summary.sumsq, row.summary.n_nan) == (norm * norm, 0)
        else:
            assert (row.summary.sumsq, row.summary.n_nan) == (0.0, 1)


def test_they_are_read_with_the_other_rows_of_their_step(tmp_path: Path) -> None:
    loss = Reading(step=0, microbatch=0, phase="loss", site="loss", port="value", order=1)
    writer = Writer(tmp_path, rank=0, warn=print)
    for step in range(3):
        writer.write([loss], StepRecord(step=step), rows_of([1.0, 2.0, math.nan], step=step, first_order=2))
    writer.write([], StepRecord(step=3), rows_of([4.0], step=3))
    writer.close()

    found = list(open_run(tmp_path).readings())

    assert [(r.step, r.site, r.summary.sumsq) for r in found if r.phase == "grad" and not r.summary.n_nan] == [
        (0, "layer.0.weight", 1.0), (0, "layer.1.weight", 4.0), (1, "layer.0.weight", 1.0),
        (1, "layer.1.weight", 4.0), (2, "layer.0.weight", 1.0), (2, "layer.1.weight", 4.0), (3, "layer.0.weight", 16.0),
    ]  # fmt: skip
    assert len(found) == 13
