"""record/journal.py: steps that no stream holds yet are read from the journal, once, whatever state it was left in."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.record.reader import RecordedRun, open_run
from hypocenter.record.writer import MANY_ROWS, STEPS_OF_BLOCK, Writer


def reading(step: int, site: str = "a") -> Reading:
    return Reading(
        step=step, microbatch=0, phase="forward", site=site, port="out[0]", order=1, shape=(2, 3), names=("a", "b"),
        summary=Summary(n=6, min=-1.0, max=math.inf, hist=(1, 5), sketch=(0.5, 1.5)),
    )  # fmt: skip


def norms(step: int, values: Sequence[float]) -> NormRows:
    rows = [
        Reading(step=0, microbatch=0, phase="grad", site=f"layer.{i}", port="grad", order=0, summary=Summary(n=4))
        for i in range(len(values))
    ]
    bad = frozenset(i for i, value in enumerate(values) if not math.isfinite(value))
    return NormRows(NormTemplate(rows), step=step, first_order=2, norms=values, bad=bad)


def killed(directory: Path, steps: range, values: Sequence[float] = ()) -> Path:
    """Write steps and leave everything as a SIGKILL does. Returns the journal."""
    writer = Writer(directory, rank=0, warn=pytest.fail)
    for step in steps:
        writer.write([reading(step)], StepRecord(step=step, loss=0.5), norms(step, values) if values else None)
    (journal,) = directory.glob("rank-*/journal-*")
    return journal


def steps_of(run: RecordedRun) -> list[int]:
    return [step.step for _, step in run.step_records()]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.0, 1e30) | st.sampled_from([math.inf, math.nan]), max_size=6), st.integers(1, 3))
def test_what_it_holds_is_what_the_streams_would(
    tmp_path_factory: pytest.TempPathFactory, values: list[float], n_steps: int
) -> None:
    directory = tmp_path_factory.mktemp("run")
    writer = Writer(directory, rank=0, warn=pytest.fail)
    for step in range(n_steps):
        writer.write([reading(step)], StepRecord(step=step), norms(step, values) if values else None)

    in_journal = open_run(directory)
    rows, steps = in_journal.table(), in_journal.steps()
    writer.close(seal=False)
    in_streams = open_run(directory)

    assert rows.combine_chunks().equals(in_streams.table().combine_chunks())
    assert steps.combine_chunks().equals(in_streams.steps().combine_chunks())
    assert rows["step"].to_pylist() == [step for step in range(n_steps) for _ in range(1 + len(values))]


@pytest.mark.slow
@pytest.mark.parametrize("n_steps", [1, STEPS_OF_BLOCK - 1, STEPS_OF_BLOCK, STEPS_OF_BLOCK + 1, 2 * STEPS_OF_BLOCK + 3])
def test_every_step_is_read_once(tmp_path: Path, n_steps: int) -> None:
    killed(tmp_path, range(n_steps), [1.0, 2.0])

    run = open_run(tmp_path)

    assert steps_of(run) == list(range(n_steps))
    assert run.table().num_rows == 3 * n_steps
    assert [r.step for r in run.readings(site="layer.1")] == list(range(n_steps))


def test_steps_of_many_rows_and_of_few_keep_their_order(tmp_path: Path) -> None:
    writer = Writer(tmp_path, rank=0, warn=pytest.fail)
    for step in range(6):
        writer.write([reading(step)] * (1 if step % 2 else MANY_ROWS), StepRecord(step=step))

    run = open_run(tmp_path)

    assert steps_of(run) == list(range(6))
    assert run.table()["step"].to_pylist() == sorted([0, 2, 4] * MANY_ROWS + [1, 3, 5])


def test_a_kill_between_stream_and_journal_doubles_no_row(tmp_path: Path) -> None:
    # given a journal as it is before its block ends, beside streams as they are after
    journal = killed(tmp_path / "before", range(STEPS_OF_BLOCK - 1))
    after = killed(tmp_path / "after", range(STEPS_OF_BLOCK))
    assert after.stat().st_size == 0
    shutil.copy(journal, after)

    run = open_run(tmp_path / "after")

    assert steps_of(run) == list(range(STEPS_OF_BLOCK))
    assert run.table().num_rows == STEPS_OF_BLOCK


def test_a_kill_between_the_two_streams_loses_no_step(tmp_path: Path) -> None:
    # given readings in their stream, and step records still in the journal
    journal = killed(tmp_path / "before", range(STEPS_OF_BLOCK - 1))
    after = killed(tmp_path / "after", range(STEPS_OF_BLOCK))
    (steps,) = journal.parent.glob("steps-*")
    shutil.copy(journal, after)
    shutil.copy(steps, after.parent)

    run = open_run(tmp_path / "after")

    assert steps_of(run) == list(range(STEPS_OF_BLOCK - 1))
    assert run.table().num_rows == STEPS_OF_BLOCK


def test_cut_at_any_byte_it_gives_whole_steps(tmp_path: Path) -> None:
    journal = killed(tmp_path, range(3), [1.0])
    data = journal.read_bytes()

    counts: list[tuple[int, int]] = []
    for size in [*range(len(data), len(data) - 300, -1), *range(len(data) - 300, 0, -7), 0]:
        os.truncate(journal, size)
        run = open_run(tmp_path)
        counts.append((run.steps().num_rows, run.table().num_rows))

    assert counts == sorted(counts, reverse=True)
    assert set(counts) == {(n, 2 * n) for n in range(4)}


def test_flipped_bits_never_make_a_traceback(tmp_path: Path) -> None:
    journal = killed(tmp_path, range(3), [1.0])
    whole = journal.read_bytes()
    rng = random.Random(7)

    n_named = 0
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        journal.write_bytes(data)
        run = open_run(tmp_path)
        assert run.table().num_rows <= 6
        list(run.readings())
        n_named += any(journal.name in problem for problem in run.problems)
    assert n_named > 200  # of the others the length was changed: they end early


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b"\xff" * 4096, b"hello", os.urandom(5000)])
def test_a_journal_of_garbage_costs_only_itself(tmp_path: Path, data: bytes) -> None:
    killed(tmp_path, range(STEPS_OF_BLOCK)).write_bytes(data)

    assert steps_of(open_run(tmp_path)) == list(range(STEPS_OF_BLOCK))


def test_a_journal_that_cannot_be_read_costs_only_itself(tmp_path: Path) -> None:
    journal = killed(tmp_path, range(STEPS_OF_BLOCK + 2))
    journal.unlink()
    journal.mkdir()

    run = open_run(tmp_path)

    assert steps_of(run) == list(range(STEPS_OF_BLOCK))
    assert any(f"{journal.name}: cannot be read" in problem for problem in run.problems)


def test_sealing_what_a_kill_left_keeps_the_steps_of_the_journal(tmp_path: Path) -> None:
    killed(tmp_path, range(STEPS_OF_BLOCK + 2))

    sealed = open_run(tmp_path).seal()

    assert len(sealed) == 2
    assert steps_of(open_run(tmp_path)) == list(range(STEPS_OF_BLOCK + 2))


def test_no_journal_is_left_at_the_end(tmp_path: Path) -> None:
    writer = Writer(tmp_path, rank=0, warn=pytest.fail)
    writer.write([reading(0)], StepRecord(step=0))

    writer.close()

    assert not list(tmp_path.glob("rank-*/journal-*"))


def test_steps_are_read_of_a_process_whose_first_rows_belonged_to_no_step(tmp_path: Path) -> None:
    writer = Writer(tmp_path, rank=0, warn=pytest.fail)
    writer.write([reading(0)], None)
    writer.write([reading(0)], StepRecord(step=0))

    assert steps_of(open_run(tmp_path)) == [0]
