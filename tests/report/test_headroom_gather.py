"""Gathering on columns is the monoid's merge, place by place."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.formats import find_format
from hypocenter.json_answer import to_json
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.schema import readings_batch
from hypocenter.report.headroom.answer import answers
from hypocenter.report.headroom.gather import gather
from hypocenter.report.headroom.html import html
from hypocenter.report.headroom.json import written
from hypocenter.report.headroom.terminal import render
from hypocenter.report.screen import Screen
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers.numpy import summarize

values = st.floats(-1e30, 1e30) | st.sampled_from([0.0, float("nan"), float("inf"), float("-inf"), 5e-324, 1e-40])
arrays = st.lists(values, min_size=1, max_size=12).map(lambda v: np.array(v, np.float64))
placed = st.tuples(
    st.sampled_from(["forward", "backward"]), st.sampled_from(["a", "b"]), st.sampled_from(["", "aten.mul.Tensor"]),
    st.integers(0, 2), arrays,
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(st.lists(placed, min_size=1, max_size=12))
def test_each_place_holds_the_merge_of_its_readings(rows: list[tuple[str, str, str, int, np.ndarray]]) -> None:
    readings = [
        Reading(step=step, microbatch=0, phase=phase, site=site, port="x", op=op, order=i, dtype="float64",  # type: ignore[arg-type]
                summary=summarize(x))
        for i, (phase, site, op, step, x) in enumerate(rows)
    ]  # fmt: skip
    table = pa.Table.from_batches([readings_batch(readings)]).append_column("rank", pa.array([0] * len(readings)))
    records = [(0, StepRecord(step=step, loss_scale=2.0**step)) for step in range(3)]

    found = {(g.phase, g.site, g.op, g.carried): g for g in gather(table, records)}

    expected: dict[object, list[Reading]] = {}
    for r in readings:
        expected.setdefault((r.phase, r.site, r.op, 2.0**r.step if r.phase == "backward" else 1.0), []).append(r)
    assert set(found) == set(expected)
    for key, parts in expected.items():
        g, merged = found[key], merge_all(r.summary for r in parts)
        for name in (
            "n",
            "n_nan",
            "n_posinf",
            "n_neginf",
            "n_hist",
            "n_zero",
            "absmax",
            "absmin",
            "hist_first",
            "hist",
        ):
            assert getattr(g.summary, name) == getattr(merged, name), name
        assert g.n_steps == len({r.step for r in parts})
        assert g.step in {r.step for r in parts if r.summary.absmax == merged.absmax}
        assert g.order == min(r.order for r in parts)
        assert g.largest == merged.absmax


wild_counts = st.integers(-(2**40), 2**40)
wild = st.builds(
    Summary, n=wild_counts, n_nan=wild_counts, n_posinf=wild_counts, n_hist=wild_counts, n_zero=wild_counts,
    min=st.floats() | st.none(), max=st.floats() | st.none(), absmin=st.floats() | st.none(), absmax=st.floats(),
    sum=st.floats(), sumsq=st.floats(), hist_first=st.integers(-(2**31), 2**31 - 1),
    hist=st.lists(wild_counts, max_size=5).map(tuple),
)  # fmt: skip


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.tuples(wild, st.sampled_from(["forward", "backward", "grad"])), max_size=4),
    st.sampled_from(["fp16", "bf16", "fp8_e4m3fn"]), st.none() | st.floats(2.0**-20, 2.0**20), st.none() | st.floats(),
)  # fmt: skip
def test_impossible_numbers_of_a_damaged_file_break_nothing(
    rows: list[tuple[Summary, str]], form: str, scale: float | None, recorded: float | None
) -> None:
    readings = [
        Reading(step=0, microbatch=0, phase=phase, site="s", port=port, order=i, dtype="bfloat16", summary=summary,  # type: ignore[arg-type]
                op="aten.sum.default", shape=(4,))
        for i, ((summary, phase), port) in enumerate((r, p) for r in rows for p in ("terms[0]", "out[0]"))
    ]  # fmt: skip
    table = pa.Table.from_batches([readings_batch(readings)]).append_column(
        "rank", pa.array([0] * len(readings), pa.int32())
    )
    records = [(0, StepRecord(step=0, loss_scale=recorded, grad_norm=recorded))]

    found = answers(table, records, (find_format(form),), scale=scale)[0]

    assert render(found, Screen(), rows=0)
    assert to_json(written(found, "r"))
    assert html([found], "r")
