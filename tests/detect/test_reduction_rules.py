"""Rules about gradients before their reduction (HC313) and about the reduction itself (HC311, HC312)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.detect.addition import Summand, compare
from hypocenter.detect.collective_rows import chosen
from hypocenter.detect.group_engine import GroupEngine, group_rules
from hypocenter.detect.panel import JobHistory, Panel
from hypocenter.nouns import Finding, Place, Reading, StepRecord, Summary
from hypocenter.record.schema import readings_batch
from hypocenter.summary.sketch import sketch

HISTORY = JobHistory


def panel_of(
    rows: Iterable[tuple[int, Reading]], *, step: int = 0, n_ranks: int = 2, history: JobHistory | None = None,
    record: StepRecord | None = None,
) -> Panel:  # fmt: skip
    pairs = list(rows)
    table = pa.Table.from_batches([readings_batch([reading for _, reading in pairs])])
    table = table.append_column("rank", pa.array([rank for rank, _ in pairs], pa.int32()))
    ranks = tuple(range(n_ranks))
    places = {r: Place(rank=r, world_size=n_ranks, groups={"dp": ranks}) for r in ranks}
    records = {r: replace(record or StepRecord(step=step), step=step) for r in ranks}
    return Panel(step=step, table=table, ranks=ranks, places=places, records=records, history=history or JobHistory())


def fired(code: str, panel: Panel) -> list[Finding]:
    return GroupEngine({code: group_rules()[code]}).feed(panel)


def local(site: str, norm: float, *, step: int = 0, call: int = 0, order: int = 0) -> Reading:
    bad = not math.isfinite(norm)
    summary = Summary(
        n=4, n_nan=int(math.isnan(norm)), n_posinf=int(math.isinf(norm)), sumsq=0.0 if bad else norm * norm
    )
    return Reading(
        step=step, microbatch=0, phase="grad", site=site, port="grad_local", order=order, call=call, summary=summary
    )


# HC313


def test_nan_on_one_rank_of_the_group() -> None:
    (finding,) = fired("HC313", panel_of([(1, local("a", math.nan))], n_ranks=4))

    assert (finding.rank, finding.param, finding.severity) == (1, "a", "error")
    assert "ranks 0, 2, 3" in finding.why[0]


def test_the_gradient_nearest_to_the_loss_is_named() -> None:
    rows = [(1, local(name, math.nan, order=i)) for i, name in enumerate(("embed", "layer", "head"))]

    (finding,) = fired("HC313", panel_of(rows))
    assert finding.param == "head"


@pytest.mark.parametrize(
    ("rows", "record"),
    [
        ([(0, local("a", math.nan)), (1, local("a", math.nan))], None),  # on all ranks: mathematics, or parameters
        ([(1, local("a", math.inf))], StepRecord(step=0, loss_scale=2.0**16, skipped=True)),  # a scale is being found
        ([(0, local("a", 1.0)), (1, local("a", 10.0))], None),
        ([], None),
    ],
    ids=["everywhere", "loss scale", "ten times", "nothing"],
)
def test_near_misses_of_a_bad_rank(rows: list[tuple[int, Reading]], record: StepRecord | None) -> None:
    assert fired("HC313", panel_of(rows, record=record)) == []


def test_what_stays_bad_is_told_once() -> None:
    history = JobHistory()

    counts = [
        len(fired("HC313", panel_of([(1, local("a", math.nan))], step=step, history=history))) for step in range(4)
    ]
    assert counts == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("value", "recent", "other", "n_expected"),
    [
        (1100.0, 1.0, None, 1),  # the others were not noted: they are as before
        (900.0, 1.0, None, 0),
        (5000.0, 1.0, 4000.0, 0),  # a spike on all ranks
        (5000.0, 1.0, 4.0, 1),
    ],
)
def test_far_out_is_a_thousand_times_its_past_and_the_others(
    value: float, recent: float, other: float | None, n_expected: int
) -> None:
    rows = [(1, local("a", value)), (1, local("a", recent, call=1))]
    rows += [] if other is None else [(0, local("a", other))]

    found = fired("HC313", panel_of(rows))
    assert [(f.rank, f.severity) for f in found] == [(1, "warning")] * n_expected


def test_two_ranks_far_out_accuse_nobody() -> None:
    rows = [(r, row) for r in (0, 1) for row in (local("a", 5e6 / (r + 1)), local("a", 1.0, call=1))]

    assert fired("HC313", panel_of(rows, n_ranks=4)) == []


# HC311, HC312


def small(values: np.ndarray) -> tuple[float, ...]:
    """The first 4 x 4 of the sketch, as the observer takes it."""
    return tuple(sketch(values).reshape(16, 16)[:4, :4].reshape(-1).tolist())


def value(
    port: str,
    values: np.ndarray,
    *,
    op: str = "all_reduce.sum",
    n_ranks: int = 2,
    digest: int | None = None,
    call: int = 0,
) -> Reading:
    finite = values[np.isfinite(values)].astype(np.float64)
    summary = Summary(
        n=values.size, n_posinf=int(np.isposinf(values).sum()), sumsq=float((finite**2).sum()), sketch=small(values),
        absmax=float(np.abs(finite).max(initial=0.0)),
    )  # fmt: skip
    names = ("dp", ",".join(map(str, range(n_ranks))), "0", "")
    return Reading(
        step=0, microbatch=0, phase="comm", site="", port=port, order=0, op=op, names=names, summary=summary, call=call,
        dtype=values.dtype.name, shape=values.shape, digest=hash(values.tobytes()) if digest is None else digest,
    )  # fmt: skip


def summands(n: int, seed: int = 0, dtype: str = "float32") -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal(300).astype(dtype) for _ in range(n)]


def all_reduced(parts: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> list[tuple[int, Reading]]:
    n = len(parts)
    return [
        *((r, value("in[0]", part, n_ranks=n)) for r, part in enumerate(parts)),
        *((r, value("out[0]", result, n_ranks=n)) for r, result in enumerate(results)),
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_right_sum_is_right_in_any_order(dtype: str) -> None:
    parts = summands(4, dtype=dtype)
    forth, back = sum(parts[1:], parts[0]), sum(parts[-2::-1], parts[-1])

    assert fired("HC311", panel_of(all_reduced(parts, [forth, forth, back, back]), n_ranks=4)) == []


def test_a_dropped_reduction_and_one_wrong_element() -> None:
    parts = summands(3)
    total = parts[0] + parts[1] + parts[2]
    wrong = total.copy()
    wrong[17] += 1.0

    (dropped,) = fired("HC311", panel_of(all_reduced(parts, [total, parts[1], total]), n_ranks=3))
    (changed,) = fired("HC311", panel_of(all_reduced(parts, [total, total, wrong]), n_ranks=3))
    assert (dropped.rank, changed.rank) == (1, 2)
    assert "own share" in dropped.title
    assert changed.actual == pytest.approx(1.0, rel=0.5)


def test_a_missing_rank_accuses_nobody() -> None:
    parts = summands(3)
    rows = all_reduced(parts, [parts[0]] * 3)

    assert fired("HC311", panel_of([row for row in rows if row[0] != 2], n_ranks=3)) == []


def test_calls_that_do_not_fit_together_accuse_nobody() -> None:
    parts = [np.ones(4, np.float32), np.ones(8, np.float32)]

    assert fired("HC311", panel_of(all_reduced(parts, parts))) == []


def test_shares_that_fit_and_a_sum_that_does_not() -> None:
    parts = [np.array([4e4, 1.0], np.float16), np.array([3.9e4, 2.0], np.float16)]
    with np.errstate(over="ignore"):
        total = parts[0] + parts[1]
    panel = panel_of(all_reduced(parts, [total, total]))

    (finding,) = fired("HC312", panel)
    assert (finding.cause, finding.limit, finding.rank) == ("accumulation-overflow", 65504.0, 0)
    assert fired("HC311", panel) == []


def test_an_infinity_that_no_sum_explains_is_a_damage() -> None:
    parts = [np.ones(4, np.float16), np.ones(4, np.float16)]
    damaged = np.array([2, 2, np.inf, 2], np.float16)
    panel = panel_of(all_reduced(parts, [np.full(4, 2, np.float16), damaged]))

    assert fired("HC312", panel) == []
    (finding,) = fired("HC311", panel)
    assert finding.rank == 1


def test_what_is_gathered_must_be_what_was_sent() -> None:
    parts = summands(2)
    good = [(r, value(f"out[{i}]", parts[i], op="all_gather")) for r in (0, 1) for i in (0, 1)]
    sent = [(r, value("in[0]", parts[r], op="all_gather")) for r in (0, 1)]
    bad = [*good[:-1], (1, value("out[1]", parts[1] + 1, op="all_gather"))]

    assert fired("HC311", panel_of([*sent, *good])) == []
    (finding,) = fired("HC311", panel_of([*sent, *bad]))
    assert finding.rank == 1


# The arithmetic

FORMATS = st.sampled_from(["float32", "float16", "float64"])


@settings(max_examples=60, deadline=None)
@given(FORMATS, st.integers(2, 16), st.integers(1, 3000), st.integers(0, 2**32 - 1), st.sampled_from([1e-6, 1.0, 1e3]))
def test_rounding_is_never_a_wrong_sum(dtype: str, n: int, size: int, seed: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    common = random.standard_normal(size)
    kind = seed % 3  # the same on all ranks, independent, or a constant
    parts = [
        (scale * (common if kind == 0 else random.standard_normal(size) if kind == 1 else np.full(size, 0.1))).astype(
            dtype
        )
        for _ in range(n)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = (total + part).astype(dtype)

    given_ = [Summand(sketch=small(p), norm=float(np.linalg.norm(p.astype(np.float64)))) for p in parts]
    assert not compare(given_, small(total), dtype=dtype).is_wrong
    mean = (total / np.array(n, dtype)).astype(dtype)
    assert not compare(given_, small(mean), dtype=dtype, factor=1 / n).is_wrong


@settings(max_examples=60, deadline=None)
@given(FORMATS, st.integers(2, 8), st.integers(1024, 3000), st.integers(0, 2**32 - 1))
def test_a_share_that_is_missing_is_always_seen(dtype: str, n: int, size: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [random.standard_normal(size).astype(dtype) for _ in range(n)]
    total = sum(p.astype(np.float64) for p in parts[1:]).astype(dtype)

    given_ = [Summand(sketch=small(p), norm=float(np.linalg.norm(p.astype(np.float64)))) for p in parts]
    assert compare(given_, small(total), dtype=dtype).is_wrong


@given(st.integers(1, 600), st.integers(0, 50), st.integers(0, 10**6))
def test_all_ranks_choose_the_same_few_parts(n: int, call: int, step: int) -> None:
    picked = chosen(n, call, step)

    assert len(set(picked)) == len(picked) <= max(8, 4)
    assert all(0 <= p < n for p in picked)
    assert len(picked) == n or len(picked) == 4
