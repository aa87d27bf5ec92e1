"""Readings as a grid, and grids merged to fit."""

from __future__ import annotations

import numpy as np
import pytest
from report_fakes import FakeRecording, planted, reading

from hypocenter.nouns import Summary, replace
from hypocenter.report.page.grid import Grid, Row, grid_of
from hypocenter.report.page.payload import by_block, by_span, fit


def grid(*readings_of_ranks: object, **more: object) -> Grid:
    return grid_of(FakeRecording(rows=[(0, r) for r in readings_of_ranks]).table(), **more)  # type: ignore[arg-type]


def test_rows_are_in_execution_order_and_cells_hold_the_largest_of_ranks() -> None:
    table = FakeRecording(
        rows=[
            (0, reading("late", 9, 2.0)), (0, reading("early", 1, 3.0)), (1, reading("early", 1, 5.0)),
            (0, reading("early", 1, 7.0, step=4)),
        ]
    ).table()  # fmt: skip

    found = grid_of(table)

    assert [row.site for row in found.rows] == ["early", "late"]
    assert found.steps == (0, 4)
    assert found.absmax[0].tolist() == [5.0, 7.0]
    assert found.absmax[1, 0] == 2.0
    assert np.isnan(found.absmax[1, 1])


def test_value_that_is_not_finite_is_infinite_unless_the_program_wrote_it() -> None:
    mask = Summary(n=4, n_hist=4, n_neginf=2, absmax=1.0)
    found = grid(
        reading("bad", 0, 0.0, summary=Summary(n=4, n_hist=4, n_nan=1)),
        reading("mask", 1, 0.0, summary=mask, literal_inf=True),
        reading("mask_and_nan", 2, 0.0, summary=replace(mask, n_nan=1), literal_inf=True),
    )

    assert found.absmax[:, 0].tolist() == [np.inf, 1.0, np.inf]


def test_inputs_integers_and_scalars_are_left_out_unless_kept() -> None:
    rows = (
        reading("a", 0, 1.0, port="in[0]"),
        reading("ids", 1, 1.0, dtype="int64"),
        reading("loss", 2, 1.0, port="value"),
        reading("a", 3, 1.0),
    )

    assert [(row.site, row.port) for row in grid(*rows).rows] == [("a", "out[0]")]
    kept = grid(*rows, keep=frozenset({("a", "in[0]"), ("ids", "out[0]")}))
    assert [(row.site, row.port) for row in kept.rows] == [("a", "in[0]"), ("ids", "out[0]"), ("a", "out[0]")]


def test_memory_that_nobody_has_written_yet_is_left_out() -> None:
    ops = ("aten.empty_like.default", "aten.new_empty.default", "aten.empty.memory_format", "aten.emptyish.default")

    found = grid(*(reading("a", i, 1.0, op=op) for i, op in enumerate(ops)))

    assert [row.op for row in found.rows] == ["aten.emptyish.default"]


def test_operators_of_one_module_have_rows_of_their_own() -> None:
    found = grid(reading("a", 0, 1.0, op="aten.mul.Tensor"), reading("a", 1, 2.0, op="aten.add.Tensor"))

    assert [row.op for row in found.rows] == ["aten.mul.Tensor", "aten.add.Tensor"]


def test_gradients_of_which_only_the_norm_is_known_show_the_norm_and_say_so() -> None:
    found = grid(
        reading("w", 0, 0.0, port="grad", summary=Summary(n=64, sumsq=25.0)),
        reading("w", 0, 0.0, port="grad", step=1, summary=Summary(n=64, n_nan=1)),
        reading("zero", 1, 0.0),
    )

    assert found.absmax.tolist()[0] == [5.0, np.inf]
    assert [row.measure for row in found.rows] == ["norm", "max"]


def test_nothing_recorded_is_an_empty_grid() -> None:
    assert grid().rows == ()


def wide(n_sites: int, n_steps: int) -> Grid:
    noise = np.random.default_rng(0).lognormal(size=(n_sites, n_steps))
    rows = [
        Row(site=f"l.{i // 10}.{i % 10}", port="out[0]", phase="forward", op="", dtype="float16")
        for i in range(n_sites)
    ]
    return Grid(rows=tuple(rows), steps=tuple(range(n_steps)), absmax=noise)


def test_grid_that_fits_is_left_alone() -> None:
    shown, packed, remarks = fit(wide(20, 20), frozenset(), 100_000)

    assert shown.absmax.shape == (20, 20)
    assert packed
    assert remarks == ()


@pytest.mark.parametrize("limit", [20_000, 4_000])
def test_grid_that_is_too_large_is_merged_and_says_so_but_flagged_rows_stay(limit: int) -> None:
    big, flagged = wide(300, 200), frozenset({("l.7.3", "out[0]")})

    shown, packed, remarks = fit(big, flagged, limit)

    assert len(packed) <= limit
    assert "l.7.3" in [row.site for row in shown.rows]
    assert "sites are merged" in remarks[0]
    assert np.nanmax(shown.absmax) == np.nanmax(big.absmax)


def test_block_and_span_keep_what_is_not_finite() -> None:
    found = grid(*planted(6, bad_step=3))

    blocks, spans = by_block(found, 2, frozenset()), by_span(found, 4)

    assert np.isinf(blocks.absmax[:, 3]).any()
    assert not np.isinf(blocks.absmax[:, 2]).any()
    assert spans.steps == (0, 4)
    assert np.isinf(spans.absmax).any()
