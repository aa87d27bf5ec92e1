"""Runs of several ranks: one tensor over all ranks is compared as one, what each rank has of its own by rank."""

from __future__ import annotations

from pathlib import Path

from hypocenter.compare.engine import compare_runs
from hypocenter.nouns import Attempt, Coords, Place, Reading, StepRecord, Summary
from hypocenter.record.place_file import write_place
from hypocenter.record.reader import open_run
from hypocenter.record.writer import Writer


def _row(phase, site, port, order, values, placement="", microbatch=0) -> Reading:
    summary = Summary(
        n=len(values), n_hist=len(values), min=min(values), max=max(values), absmax=max(map(abs, values)),
        sum=sum(values), sumsq=sum(x * x for x in values), hist_first=0, hist=(len(values),),
    )  # fmt: skip
    return Reading(
        step=0, microbatch=microbatch, phase=phase, site=site, port=port, order=order, dtype="float32",
        shape=(len(values),), summary=summary, placement=placement,
    )  # fmt: skip


def _run(out: Path, *, n_ranks: int, rows) -> Path:
    """Record one step; `rows(rank)` gives the readings of a rank."""
    for rank in range(n_ranks):
        writer = Writer(out, rank=rank, warn=lambda text: None)
        writer.write(rows(rank), StepRecord(step=0, loss=1.0))
        writer.close()
        groups = {"dp": tuple(range(n_ranks))}
        place = Place(rank=rank, world_size=n_ranks, coords=Coords(dp=rank), groups=groups)
        write_place(out, place, Attempt(pid=1, host="h"))
    (out / "run.json").write_text(f'{{"format": 1, "name": "r", "world_size": {n_ranks}}}')
    return out


def _rows(rank: int, *, activation: float = 0.0, sharded: bool = False, microbatch: int = 0) -> list[Reading]:
    weight = [1.0, 2.0, 3.0, 4.0]
    own = weight[2 * rank : 2 * rank + 2] if sharded else weight
    placement = "dp=S(0)" if sharded else "dp=R"
    return [
        _row("forward", "a", "in[0]", 1, [1.0 + rank, 2.0]),
        _row("forward", "a", "out[0]", 2, [5.0 + rank, 6.0 + (activation if rank == 1 else 0.0)]),
        _row("param", "a.weight", "value", 3, own, placement, microbatch),
    ]


def test_each_rank_is_compared_with_its_counterpart(tmp_path):
    baseline = open_run(_run(tmp_path / "a", n_ranks=2, rows=_rows))
    same = open_run(_run(tmp_path / "b", n_ranks=2, rows=_rows))
    other = open_run(_run(tmp_path / "c", n_ranks=2, rows=lambda rank: _rows(rank, activation=1.0)))

    good, bad = compare_runs(baseline, same), compare_runs(baseline, other)

    assert (good.status, good.n_rows) == ("same", 5)
    assert (bad.status, bad.first.site, bad.first.port) == ("diverged", "a", "out[0]")


def test_shards_are_put_together(tmp_path):
    baseline = open_run(_run(tmp_path / "a", n_ranks=2, rows=_rows))
    sharded = open_run(_run(tmp_path / "b", n_ranks=2, rows=lambda rank: _rows(rank, sharded=True)))

    found = compare_runs(baseline, sharded)

    assert found.status == "same"
    assert any(row.pair.baseline[0].site == "a.weight" for row in found.rows)


def test_parameters_are_of_the_step_whatever_micro_batch_was_the_last(tmp_path):
    baseline = open_run(_run(tmp_path / "a", n_ranks=1, rows=_rows))
    other = open_run(_run(tmp_path / "b", n_ranks=1, rows=lambda rank: _rows(rank, microbatch=3)))

    found = compare_runs(baseline, other)

    assert any(row.pair.baseline[0].site == "a.weight" for row in found.rows)
    assert (found.status, found.n_rows) == ("same", 3)


def test_other_numbers_of_ranks_compare_what_is_one_tensor(tmp_path):
    two = open_run(_run(tmp_path / "a", n_ranks=2, rows=_rows))
    one = open_run(_run(tmp_path / "b", n_ranks=1, rows=_rows))

    found = compare_runs(two, one)

    compared = {row.pair.baseline[0].site for row in found.rows if row.verdict != "cannot-tell"}
    assert compared == {"a.weight"}
    assert all(row.distance is None for row in found.rows if row.pair.baseline[0].site == "a")
    assert found.status == "cannot-tell"
    assert any("was not recorded" in note for note in found.notes)
