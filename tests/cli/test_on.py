"""`--on`: every reading command answers the same, whatever looks at the ranks."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recordings import Said, run

from hypocenter.nouns import Attempt, Coords, Place, Reading, StepRecord, Summary
from hypocenter.record import workers
from hypocenter.record.place_file import write_place
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer

FAULTS = ("none", "nan", "drift", "lr", "shared data", "other batch", "cut", "missing", "skip")
QUESTIONS: list[Callable[[Path, Path], tuple[object, ...]]] = [
    lambda one, _: ("check", one, "--notes"),
    lambda one, _: ("check", one, "--json"),
    lambda one, _: ("report", one, "--format", "html", "-o", "-"),
    lambda one, _: ("report", one, "--json"),
    lambda one, _: ("show", one),
    lambda one, _: ("show", one, "--values", "--site", "layers.*", "--json"),
    lambda one, _: ("show", one, "--ranks", "--json"),
    lambda one, _: ("show", one, "--sql", "select count(*), sum(sumsq) from readings"),
    lambda one, _: ("show", one, "--step", 99),
    lambda one, _: ("health", one, "--json"),
    lambda one, other: ("curves", one, other, "--json"),
    lambda one, other: ("diff", one, other, "--json"),
    lambda one, other: ("diff", one, other, "--noise", one),
]
JOBS = st.fixed_dictionaries(
    {
        "dp": st.integers(1, 3), "tp": st.integers(1, 2), "n_steps": st.integers(3, 9),
        "faults": st.sets(st.tuples(st.sampled_from(FAULTS), st.integers(0, 5)), max_size=3),
    }
)  # fmt: skip


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are this process, asked of what has travelled; processes are asked once, below: they are slow."""
    monkeypatch.setattr(workers.Processes, "_at_work", lambda self: _Pool())


class _Pool:
    def submit(self, ask: Callable[[object], object], part: object):
        import pickle
        from concurrent.futures import Future

        future: Future[object] = Future()
        ask, part = pickle.loads(pickle.dumps((ask, part)))
        try:
            future.set_result(pickle.loads(pickle.dumps(ask(part))))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.usefixtures("inline")
@settings(max_examples=5)
@given(one=JOBS, other=JOBS, n=st.integers(1, 5))
def test_the_answer_is_the_same_in_whatever_parts(tmp_path_factory: pytest.TempPathFactory, one, other, n):
    folder = tmp_path_factory.mktemp("on")
    runs = job(folder / "one", **one), job(folder / "other", **other)

    for question in QUESTIONS:
        words = question(*runs)
        assert said(*words, "--on", f"processes:{n}") == said(*words), words


@pytest.mark.night
def test_the_answer_of_processes_is_the_same(tmp_path: Path):
    faults = {("nan", 1), ("drift", 2), ("cut", 3)}
    runs = job(tmp_path / "one", dp=3, tp=2, n_steps=6, faults=faults), job(tmp_path / "other", dp=2, tp=2, n_steps=6)

    for question in QUESTIONS[1::2]:
        words = question(*runs)
        assert said(*words, "--on", "processes:2") == said(*words), words


def said(*words: object) -> Said:
    """Without how long it took."""
    found = run(*words)
    return replace(found, out=re.sub(r"rows in [0-9.]+ s", "rows", found.out))


def job(path: Path, *, dp: int, tp: int, n_steps: int, faults: set[tuple[str, int]] | frozenset = frozenset()) -> Path:
    """A recording of dp × tp ranks with replicas, data, gradients and activations; `faults` are at ranks."""
    start_run(path, ["train.py"], {"level": "modules"}, dp * tp, {"torch": "2.6"})
    at = {(what, rank % (dp * tp)) for what, rank in faults}
    for rank in range(dp * tp):
        if ("missing", rank) in at and rank:
            continue
        place = Place(
            rank=rank, world_size=dp * tp, local_rank=rank, host="node0", device=f"cuda:{rank}", launcher="torchrun",
            coords=Coords(tp=rank % tp, dp=rank // tp, pp=0), source="Megatron-Core",
            groups={"tp": tuple(rank // tp * tp + i for i in range(tp)),
                    "dp": tuple(rank % tp + tp * i for i in range(dp)), "pp": (rank,)},
        )  # fmt: skip
        assert not write_place(path, place, Attempt(host="node0", pid=1 + rank, started="2026-01-01T00:00:00+00:00"))
        writer = Writer(path, rank=rank, warn=pytest.fail)
        for step in range(n_steps):
            writer.write(list(_rows(step, rank, tp, at)), _record(step, rank, n_steps, at))
        writer.close()
        if ("cut", rank) in at:
            for stream in path.glob(f"rank-{rank:05d}/events-*.arrow"):
                stream.write_bytes(stream.read_bytes()[: stream.stat().st_size * 2 // 3])
    finish_run(path, "finished", 0)
    return path


def _record(step: int, rank: int, n_steps: int, at: set[tuple[str, int]]) -> StepRecord:
    is_bad = ("nan", rank) in at and step == n_steps - 1
    norm = float("nan") if is_bad else 1.0 + 0.1 * (step % 3)
    lr = 1.5e-3 if ("lr", rank) in at and step > 1 else 1e-3
    loss = 2.0 - 0.01 * step
    record = StepRecord(step=step, n_microbatches=1, loss=loss, grad_norm=norm, lr=lr, n_bad_grads=int(is_bad))
    return replace(record, skipped=True, loss_scale=1024.0) if ("skip", rank) in at and step == 2 else record


def _rows(step: int, rank: int, tp: int, at: set[tuple[str, int]]):
    kind = {"step": step, "microbatch": 0, "dtype": "float32", "shape": (4, 4)}
    data = 0 if ("shared data", rank) in at else rank // tp
    yield Reading(
        **kind | {"dtype": "int64"}, phase="data", site="batch.in[0]", port="digest", order=0,
        summary=Summary(n=16, n_hist=16, min=0.0, max=9.0, absmax=9.0, sum=50.0, sumsq=400.0),
        digest=1000 * step + data + (7 if ("other batch", rank) in at and step == 1 else 0),
        row_digests=tuple((4000 * step + 4 * data + i) * 4096 + i for i in range(4)),
    )  # fmt: skip
    for i, site in enumerate(("layers.0.weight", "layers.1.weight")):
        norm = Summary(n=16, sumsq=1.0 + 0.01 * step + 0.1 * i + 0.01 * (rank % tp))
        bad = Summary(n=16, n_nan=1) if ("nan", rank) in at and step > 1 and i == 1 else norm
        placement = "dp=R tp=S(0)"
        yield Reading(**kind, phase="grad", site=site, port="grad", order=3 + i, summary=bad, placement=placement)
        yield Reading(
            **kind, phase="param", site=site, port="replica", order=5 + i, summary=norm, placement=placement,
            digest=99 * step + i + 1000 * (rank % tp) + (5 if ("drift", rank) in at and step > 1 else 0),
        )  # fmt: skip
    for i, site in enumerate(("layers.0", "layers.1")):
        size = 1.0 + step + i
        values = Summary(n=16, n_hist=16, min=-size, max=size, absmax=size, absmin=0.1, sum=1.0, sumsq=16 * size)
        yield Reading(**kind, phase="forward", site=site, port="out[0]", order=1 + i, module="Linear", summary=values)
