"""record/islands.py: which steps stay whole."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record import islands
from hypocenter.record.schema import READINGS, readings_batch, steps_batch

NONE = pa.array([], pa.int64())


def steps(**changes: Mapping[int, object]) -> pa.Table:
    """A thousand healthy step records, but for some values of some."""
    records = [
        StepRecord(step=i, **{"loss": 2.0, "grad_norm": 1.0, **{k: v[i] for k, v in changes.items() if i in v}})  # pyright: ignore[reportArgumentType]
        for i in range(1_000)
    ]
    return pa.Table.from_batches([steps_batch(records)])


def test_a_healthy_stretch_keeps_nothing() -> None:
    assert islands.bad_steps(steps()) == islands.odd_steps(steps()) == set()


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": {500: math.nan}}, {"grad_norm": {500: math.inf}}, {"finding": {500: "step-000500"}},
        {"n_bad_grads": {500: 1}},
    ],
)  # fmt: skip
def test_what_was_wrong_is_kept(changes: dict[str, dict[int, object]]) -> None:
    assert islands.bad_steps(steps(**changes)) == {500}


def test_a_step_that_the_scaler_skipped_is_odd_and_not_bad() -> None:
    found = steps(skipped={500: True}, n_bad_grads={500: 3}, loss_scale={499: 8.0, 500: 8.0, 501: 4.0})

    assert islands.bad_steps(found) == set()
    assert islands.odd_steps(found) == {500, 501}


def test_a_jump_is_odd_and_a_noisy_series_is_not_kept_whole() -> None:
    rng = np.random.default_rng(0)
    noisy = {i: float(v) for i, v in enumerate(rng.lognormal(0, 2, 1_000))}

    assert islands.odd_steps(steps(loss={500: 80.0})) == {500}
    assert len(islands.odd_steps(steps(loss=noisy))) <= 4


@pytest.mark.parametrize(
    ("row", "is_kept"),
    [
        ({"site": "w", "summary": Summary(n=2, n_posinf=1)}, True),
        ({"site": "mask", "summary": Summary(n=2, n_neginf=1), "literal_inf": True}, False),
        ({"site": "w", "summary": Summary(n=2), "replay": True}, True),
        ({"site": "w", "summary": Summary(n=2), "replay": True, "op": "health"}, False),
        ({"site": "misuse.clip", "summary": Summary(n=1)}, True),
        ({"site": "w", "summary": Summary(n=2)}, False),
    ],
)
def test_rows_that_are_out_of_the_ordinary_keep_their_step(row: dict[str, object], is_kept: bool) -> None:
    reading = Reading(step=7, microbatch=0, phase="grad", port="grad", order=0, **row)  # pyright: ignore[reportArgumentType]

    assert islands.bad_in(readings_batch([reading]), NONE) == ({7} if is_kept else set())
    assert READINGS.names[0] == "step"


def test_islands_that_touch_are_one_and_none_is_endless() -> None:
    assert islands.around([100, 110, 500]) == [(36, 126), (436, 516)]
    assert islands.around(range(1_000, 9_000)) == [(936, 936 + islands.LONGEST - 1)]
    assert islands.around([3]) == [(0, 19)]


def test_a_step_lies_within_or_not() -> None:
    inside = islands.within([(10, 12), (11, 20), (30, 30)], pa.array([9, 10, 20, 21, 30, 31]))

    assert inside.to_pylist() == [False, True, True, False, True, False]
    assert islands.within([], pa.array([1])).to_pylist() == [False]


def test_ranks_keep_what_any_of_them_asked_for(tmp_path: Path) -> None:
    one, other = (islands.Islands(folder=tmp_path / "kept") for _ in range(2))

    one.ask([100], "bad")
    other.ask([100, 400], "odd")

    assert one.listed() == other.listed() == [(36, 116), (336, 416)]
    assert other.n_asked == {"odd": 1}
    (tmp_path / "kept" / "no island").touch()
    assert len(one.listed()) == 2


def test_a_rank_asks_for_so_many_and_no_more(tmp_path: Path) -> None:
    asking = islands.Islands(folder=tmp_path / "kept")

    asking.ask(range(0, 1_000_000, 1_000), "odd")

    assert len(asking.listed()) == islands.MOST["odd"]
