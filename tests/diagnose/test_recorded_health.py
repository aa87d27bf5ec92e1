"""What is read of a run's health by columns is what its rows say one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.job_of_512.job import Job
from bench.job_of_512.simulate import write_job
from hypocenter.detect.health_rows import HEALTH
from hypocenter.detect.local_rows import LOCAL, NORM
from hypocenter.diagnose.health import answer
from hypocenter.diagnose.recorded_health import Place, Recorded, Series
from hypocenter.nouns import Reading, StepRecord, Summary, replace
from hypocenter.record.reader import open_run
from hypocenter.record.run_file import start_run
from hypocenter.record.writer import Writer

GOLDEN = sorted(Path(__file__).resolve().parents[1].glob("golden/format-*"))
Rows = dict[Place, list[Reading]]

row = st.builds(
    lambda step, order, site, what, call, absmax, op, replay: Reading(
        step=step, microbatch=call, phase=what[0], site=site, port=what[1], order=order, call=call, dtype="float32",
        shape=(2,), op=op, replay=replay,
        summary=Summary(n=2, n_hist=2, absmax=absmax, sumsq=absmax * step, sketch=(absmax, float(step))),
    ),
    step=st.integers(0, 3),
    order=st.integers(0, 3),
    site=st.sampled_from(["a", "b"]),
    what=st.sampled_from([("forward", "out[0]"), ("forward", "out[1]"), ("grad", "grad"), ("grad", LOCAL)]),
    call=st.integers(0, 1),
    absmax=st.sampled_from([0.0, 1.0, 2.0, float("nan")]),
    op=st.just(""),
    replay=st.booleans(),
)  # fmt: skip
look = row.map(lambda r: replace(r, op=HEALTH, phase="optimizer", port="units", replay=True))
rows_of_ranks = st.lists(st.lists(st.one_of(row, look), max_size=12), min_size=1, max_size=3)


def one_by_one(rows: Sequence[tuple[int, Reading]]) -> Rows:
    """By place in the order in which they began, the largest of each step; of looks the last."""
    places: defaultdict[Place, dict[int, Reading]] = defaultdict(dict)
    for rank, each in sorted(rows, key=lambda pair: (pair[1].step, pair[1].order)):
        steps = places[Place(rank, each.site, each.port, each.call)]
        known = steps.get(each.step)
        if known is None or each.op == HEALTH or each.summary.absmax > known.summary.absmax:
            steps[each.step] = each
    return {place: list(steps.values()) for place, steps in places.items()}


def told(series: Sequence[Series]) -> list[object]:
    names = ("absmax", "sumsq", "n", "n_nan", "microbatch")
    numbers = ({name: each.column(name).tolist() for name in names} for each in series)
    return [(s.place, s.steps.tolist(), of, s.last) for s, of in zip(series, numbers, strict=True)]


def expected(found: Rows) -> list[object]:
    return [
        (place, [r.step for r in rows], {**_summed(rows), "microbatch": [r.microbatch for r in rows]}, rows[-1])
        for place, rows in found.items()
    ]


def _summed(rows: Sequence[Reading]) -> dict[str, list[float]]:
    return {name: [getattr(r.summary, name) for r in rows] for name in ("absmax", "sumsq", "n", "n_nan")}


def is_same(path: Path, on: str = "") -> bool:
    recording = open_run(path)
    every = [(rank, each) for rank in recording.ranks for each in recording.readings(rank=rank)]
    found = Recorded(open_run(path, on))
    is_grad = [(k, r) for k, r in every if (r.phase, r.port) == ("grad", "grad") and not r.replay]
    outs = [(k, r) for k, r in every if r.phase == "forward" and r.port.startswith("out")]
    outputs = one_by_one([(k, r) for k, r in outs if not r.replay and not r.recompute])
    ports = dict.fromkeys(place.port for place in outputs)
    looks = one_by_one([(k, r) for k, r in every if r.op == HEALTH])
    pairs = [
        (found.gradients, one_by_one(is_grad)),
        (found.local_gradients, one_by_one([(k, r) for k, r in every if r.port == LOCAL and r.call == NORM])),
        (found.outputs, {place: outputs[place] for port in ports for place in outputs if place.port == port}),
        *((found.looks(port), _of_port(looks, port)) for port in {place.port for place in looks}),
    ]
    points = [(s.place, s.points(1)) for port in {p.port for p in looks} for s in found.looks(port) if s.numbers[1:]]
    assert all(of == [(r.step, (r.summary.sketch or (0.0, 0.0))[1]) for r in looks[place]] for place, of in points)
    return all(repr(told(series)) == repr(expected(rows)) for series, rows in pairs)


def _of_port(rows: Rows, port: str) -> Rows:
    return {place: each for place, each in rows.items() if place.port == port}


@pytest.mark.parametrize("run", GOLDEN, ids=lambda run: run.name)
def test_a_golden_recording_is_read_alike(run: Path):
    assert is_same(run)


@settings(max_examples=25, deadline=None)
@given(rows_of_ranks)
def test_rows_of_any_order_are_read_alike(tmp_path_factory: pytest.TempPathFactory, ranks: list[list[Reading]]):
    path = tmp_path_factory.mktemp("health") / "run"
    start_run(path, ["python", "train.py"], {}, len(ranks), {})
    for rank, rows in enumerate(ranks):
        writer = Writer(path, rank=rank, warn=pytest.fail)
        writer.write(rows[:6], StepRecord(step=0, n_microbatches=1))
        writer.write(rows[6:], StepRecord(step=1, n_microbatches=1))
        writer.close()

    assert is_same(path)


def test_a_job_is_read_alike_whatever_reads_it(tmp_path: Path):
    write_job(tmp_path / "run", Job(ranks=4, layers=1, steps=20, tp=2, pp=1), processes=1)

    assert is_same(tmp_path / "run")
    assert is_same(tmp_path / "run", "processes:2")
    alone, parted = (answer("run", Recorded(open_run(tmp_path / "run", on))) for on in ("", "processes:2"))
    assert repr(alone) == repr(parted)
    assert alone.status != "cannot-tell"
