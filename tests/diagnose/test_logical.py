"""diagnose/logical.py: shards, copies and summands of many ranks against the tensor that they are of."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.diagnose.logical import logical_steps, merged
from hypocenter.diagnose.logical_norm import grad_norms
from hypocenter.diagnose.placements import parsed, standings
from hypocenter.nouns import Coords, Place, Reading, Summary, replace
from hypocenter.record.schema import readings_batch
from hypocenter.summary.merge import merge_all
from hypocenter.summary.reducers.numpy import summarize as summary_of
from hypocenter.summary.sketch import Placement, sketch

SIZES = {"dp": 2, "tp": 3, "cp": 2}


def mesh(**sizes: int) -> dict[int, Place]:
    """A place for each rank of a mesh; the last axis runs fastest."""
    axes = list(sizes)
    coords = list(itertools.product(*(range(n) for n in sizes.values())))
    rank_at = {at: rank for rank, at in enumerate(coords)}

    def group(at: tuple[int, ...], axis: int) -> tuple[int, ...]:
        return tuple(rank_at[(*at[:axis], i, *at[axis + 1 :])] for i in range(sizes[axes[axis]]))

    return {
        rank: Place(
            rank=rank, world_size=len(coords), coords=Coords(**dict(zip(axes, at, strict=True))),
            groups={name: group(at, i) for i, name in enumerate(axes)},
        )
        for at, rank in rank_at.items()
    }  # fmt: skip


def row(summary: Summary, placement: str, **more: Any) -> Reading:
    fields = {"step": 0, "microbatch": 0, "phase": "grad", "site": "w", "port": "grad", "order": 0, "dtype": "float32"}
    return Reading(**{**fields, **more}, summary=summary, placement=placement)


def table_of(rows: list[tuple[int, Reading]]) -> pa.Table:
    table = pa.Table.from_batches([readings_batch([r for _, r in rows])])
    return table.append_column("rank", pa.array([rank for rank, _ in rows], pa.int32()))


def only(table: pa.Table) -> dict[str, Any]:
    (found,) = table.to_pylist()
    return found


def held(whole: np.ndarray, place: Place, kinds: Mapping[str, str]) -> tuple[np.ndarray, Placement]:
    """The shard of a rank, and where it lies."""
    offset = [0] * whole.ndim
    shard = whole
    for axis, kind in kinds.items():
        if kind.startswith("S"):
            dim, group = int(kind[2:-1]), place.groups[axis]
            parts = np.array_split(shard, len(group), axis=dim)
            at = group.index(place.rank)
            offset[dim] += sum(part.shape[dim] for part in parts[:at])
            shard = parts[at]
    return shard, Placement(shape=whole.shape, offset=tuple(offset))


def same(found: Mapping[str, Any], expected: Summary) -> None:
    for name in ("n", "n_nan", "n_posinf", "n_neginf", "n_hist", "n_zero", "n_subnormal", "min", "max", "absmin",
                 "absmax"):  # fmt: skip
        assert found[name] == getattr(expected, name), name
    assert found["sum"] == pytest.approx(expected.sum, rel=1e-9, abs=1e-9)
    assert found["sumsq"] == pytest.approx(expected.sumsq, rel=1e-9)


@st.composite
def placed(draw: st.DrawFn) -> tuple[dict[str, str], np.ndarray]:
    """Kinds of axes (copies or shards) and a matrix with special values."""
    kinds = {axis: draw(st.sampled_from(["R", "S(0)", "S(1)"])) for axis in SIZES}
    rows, columns = draw(st.integers(6, 9)), draw(st.integers(6, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    whole = rng.normal(size=(rows, columns)).astype(np.float32) * 10.0 ** rng.integers(-6, 6)
    for value in draw(st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e-40]), max_size=4)):
        whole[rng.integers(rows), rng.integers(columns)] = value
    return kinds, whole


@settings(max_examples=60, deadline=None)
@given(case=placed())
def test_shards_and_copies_come_to_the_summary_of_the_tensor(case: tuple[dict[str, str], np.ndarray]) -> None:
    kinds, whole = case
    places = mesh(**SIZES)
    placement = " ".join(f"{axis}={kind}" for axis, kind in kinds.items())
    rows = [(rank, row(summary_of(held(whole, place, kinds)[0]), placement)) for rank, place in places.items()]

    found = only(merged(table_of(rows), places, histograms=True))

    expected = summary_of(whole)
    same(found, expected)
    assert (found["hist_first"], tuple(found["hist"])) == (expected.hist_first, expected.hist)
    assert (found["is_complete"], found["replicas_agree"], found["is_bound"]) == (True, True, False)
    n_shards = math.prod(SIZES[axis] for axis, kind in kinds.items() if kind != "R")
    assert (found["n_shards"], found["n_ranks"], found["rank"]) == (n_shards, 12, 0)


@settings(max_examples=60, deadline=None)
@given(case=placed())
def test_sketches_of_shards_at_their_place_come_to_the_sketch_of_the_tensor(
    case: tuple[dict[str, str], np.ndarray],
) -> None:
    kinds, whole = case
    places = mesh(**SIZES)
    placement = " ".join(f"{axis}={kind}" for axis, kind in kinds.items())
    shards = {rank: held(whole, place, kinds) for rank, place in places.items()}
    rows = [(r, row(Summary(n=1, sketch=tuple(sketch(*at).tolist())), placement)) for r, at in shards.items()]

    found = only(merged(table_of(rows), places, sketches=True, are_sketches_of_shards=True))

    size = float(np.linalg.norm(np.nan_to_num(whole, nan=0.0, posinf=0.0, neginf=0.0)))
    np.testing.assert_allclose(found["sketch"], sketch(whole), atol=1e-4 * max(size, 1e-30))


def test_sketches_of_shards_taken_without_their_place_are_not_added() -> None:
    places = mesh(dp=2)
    numbers = Summary(n=1, sketch=(1.0, 2.0))
    sharded = table_of([(rank, row(numbers, "dp=S(0)")) for rank in places])
    copied = table_of([(rank, row(numbers, "dp=R")) for rank in places])

    assert only(merged(sharded, places, sketches=True))["sketch"] is None
    assert only(merged(copied, places, sketches=True))["sketch"] == [1.0, 2.0]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 30))
def test_summands_are_bounded(seed: int, n: int) -> None:
    places = mesh(dp=2, tp=3)
    rng = np.random.default_rng(seed)
    summands = rng.normal(size=(3, n)).astype(np.float32)
    rows = [
        (r, row(replace(summary_of(v), sketch=tuple(sketch(v).tolist())), "dp=R tp=P"))
        for r in places
        for v in [summands[places[r].coords.tp or 0]]
    ]

    found = only(merged(table_of(rows), places, histograms=True, sketches=True))

    total = summary_of(summands.astype(np.float64).sum(axis=0))
    assert (found["is_bound"], found["is_complete"], found["n"]) == (True, True, n)
    assert found["sum"] == pytest.approx(total.sum, abs=1e-5)
    assert found["sumsq"] >= total.sumsq * (1 - 1e-6)
    assert found["max"] >= (total.max or 0) - 1e-5
    assert found["min"] <= (total.min or 0) + 1e-5
    assert found["absmax"] >= total.absmax - 1e-5
    assert found["absmin"] is None
    assert found["hist"] == []
    np.testing.assert_allclose(found["sketch"], sketch(summands.sum(axis=0)), atol=1e-3)


def test_a_missing_copy_changes_nothing_and_a_missing_shard_is_said() -> None:
    places = mesh(dp=2, tp=2)
    rows = [(r, row(Summary(n=4, sumsq=1.0 + (places[r].coords.tp or 0)), "dp=R tp=S(0)")) for r in places]

    without_copy = only(merged(table_of(rows[1:]), places))
    without_shard = only(merged(table_of([rows[0], rows[2]]), places))

    assert (without_copy["n"], without_copy["sumsq"], without_copy["is_complete"]) == (8, 3.0, True)
    assert (without_shard["n"], without_shard["n_expected"], without_shard["is_complete"]) == (4, 2, False)


def test_copies_that_differ_do_not_agree() -> None:
    places = mesh(dp=3)
    rows = [(r, row(Summary(n=4, sumsq=1.0), "dp=R", digest=7 + (r == 2))) for r in places]

    found = merged(table_of([*rows, *((r, row(Summary(n=4), "dp=R", site="v", digest=1)) for r in places)]), places)

    assert dict(zip(found["site"].to_pylist(), found["replicas_agree"].to_pylist(), strict=True)) == {
        "w": False,
        "v": True,
    }


@pytest.mark.parametrize("placement", ["", "dp=V", "nonsense", "ep=R"])
def test_without_a_known_placement_every_rank_has_a_tensor_of_its_own(placement: str) -> None:
    places = mesh(dp=2)
    rows = [(r, row(Summary(n=4), placement)) for r in places]

    found = merged(table_of(rows), places)

    assert (found["rank"].to_pylist(), found["n"].to_pylist()) == ([0, 1], [4, 4])


def test_stages_calls_and_repeats_stay_apart() -> None:
    places = mesh(pp=2, dp=2)
    rows = [(r, row(Summary(n=1), "dp=R", site=f"layer.{places[r].coords.pp}", call=c, order=o))
            for r in places for c in (0, 1) for o in (0, 5)]  # fmt: skip

    found = merged(table_of(rows), places)

    assert found.num_rows == 8
    assert set(found["n_ranks"].to_pylist()) == {2}


def test_a_rank_without_a_place_stays_as_it_is() -> None:
    places = mesh(dp=2)
    del places[1]

    found = merged(table_of([(r, row(Summary(n=4), "dp=R")) for r in (0, 1)]), places)

    assert found["rank"].to_pylist() == [0, 1]


def test_placements_are_read_and_hostile_ones_are_none() -> None:
    assert parsed("dp=R tp=S(0) cp=P ep=V") == {"dp": "R", "tp": "S", "cp": "P", "ep": "V"}
    assert parsed("dp=S") == {"dp": "S"}
    assert parsed("dp=R tp") == {}
    assert standings("tp", mesh(tp=2), [0, 1]) == {}


# --- the gradient norm of the job


def local_grads(places: Mapping[int, Place], weights: Mapping[str, tuple[np.ndarray, str]]) -> Iterator[Any]:
    for rank, place in places.items():
        for i, (name, (whole, placement)) in enumerate(weights.items()):
            shard, _ = held(whole, place, dict(word.split("=") for word in placement.split()))
            sumsq = float((shard.astype(np.float64) ** 2).sum())
            yield rank, row(Summary(n=shard.size, sumsq=sumsq), placement, site=name, order=i)


def test_the_norm_counts_copies_once_and_adds_shards() -> None:
    rng = np.random.default_rng(0)
    places = mesh(dp=2, tp=3)
    weights = {
        "fc.weight": (rng.normal(size=(9, 4)), "dp=R tp=S(0)"),
        "proj.weight": (rng.normal(size=(4, 9)), "dp=S(0) tp=S(1)"),
        "norm.weight": (rng.normal(size=4), "dp=R tp=R"),
    }

    (found,) = grad_norms(table_of(list(local_grads(places, weights))), places)

    expected = math.sqrt(sum(float((w**2).sum()) for w, _ in weights.values()))
    assert found.norm == pytest.approx(expected, rel=1e-12)
    assert (found.n_parameters, found.why_not, found.is_lower_bound) == (3, "", False)


def test_a_placement_is_taken_from_the_row_that_has_it() -> None:
    places = mesh(dp=2)
    rows = [(r, row(Summary(n=2, sumsq=4.0), "", step=step)) for r in places for step in (0, 1)]
    rows += [(r, row(Summary(n=2), "dp=R", port="replica.grad")) for r in places]

    assert [norm.norm for norm in grad_norms(table_of(rows), places)] == [2.0, 2.0]


def test_a_norm_that_cannot_be_told_is_not_told() -> None:
    places = mesh(dp=2, tp=2)
    rows = [(r, row(Summary(n=2, sumsq=4.0), "dp=R")) for r in places]

    (found,) = grad_norms(table_of(rows), places)

    assert (found.norm, found.why_not) == (None, "how gradients are placed over tp was not recorded")


def test_missing_shards_and_unreduced_gradients_are_bounds_and_nan_is_nan() -> None:
    places = mesh(dp=2)
    (cut,) = grad_norms(table_of([(0, row(Summary(n=2, sumsq=4.0), "dp=S(0)"))]), places)
    (open_,) = grad_norms(table_of([(r, row(Summary(n=2, sumsq=4.0), "dp=P")) for r in places]), places)
    (bad,) = grad_norms(table_of([(r, row(Summary(n=2, n_nan=r), "dp=S(0)")) for r in places]), places)

    assert (cut.norm, cut.is_lower_bound, cut.why_not) == (2.0, True, "shards of some ranks are missing")
    assert (open_.norm, open_.is_upper_bound) == (4.0, True)
    assert bad.norm is not None
    assert math.isnan(bad.norm)


def test_counts_agree_with_the_monoid() -> None:
    places = mesh(tp=4)
    shards = [summary_of(np.arange(i, i + 5, dtype=np.float32)) for i in range(4)]

    found = only(merged(table_of([(r, row(shards[r], "tp=S(0)")) for r in places]), places, histograms=True))

    expected = merge_all(shards)
    same(found, expected)
    assert tuple(found["hist"]) == expected.hist


def test_shards_that_are_copies_are_not_counted_twice_in_a_norm() -> None:
    places = mesh(dp=4)  # hybrid sharding: two copies of two shards
    rows = [(r, row(Summary(n=2, sumsq=1.0 + r % 2), "dp=S(0)", site=site)) for r in places for site in "ab"]

    (found,) = grad_norms(table_of(rows), places)

    assert found.norm is None
    assert "hybrid sharding" in found.why_not
    assert merged(table_of(rows), places)["has_equal_shards"].to_pylist() == [True, True]


def test_a_step_without_digests_is_placed_as_the_steps_before_and_local_gradients_are_not() -> None:
    places = mesh(dp=2)
    rows = [(r, row(Summary(n=2), "dp=R", port="replica.grad")) for r in places]
    rows += [(r, row(Summary(n=2), "", step=step, port=port, order=1))
             for step in (0, 1) for port in ("grad", "grad_local") for r in places]  # fmt: skip
    by_rank = [(r, table_of([one for one in rows if one[0] == r])) for r in places]

    found = list(logical_steps(by_rank, places))

    assert [t["step"].unique().to_pylist() for t in found] == [[0], [1]]
    assert [t.filter(pc.equal(t["port"], "grad"))["n_ranks"].to_pylist() for t in found] == [[2], [2]]
    assert [t.filter(pc.equal(t["port"], "grad_local"))["n_ranks"].to_pylist() for t in found] == [[1, 1], [1, 1]]
