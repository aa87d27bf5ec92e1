"""Two recordings, one of them damaged: an answer that says so, or one clear error; never anything else."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.compare.engine import compare_runs
from hypocenter.errors import HypocenterError
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.reader import open_run
from hypocenter.record.writer import STEPS_OF_BLOCK, Writer
from hypocenter.report.comparison import json, terminal

_QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def _readings(step: int, scale: float = 1.0) -> list[Reading]:
    spots = [
        ("forward", "", "in[0]"), ("forward", "a", "in[0]"), ("forward", "a", "out[0]"), ("forward", "", "out[0]"),
        ("backward", "a", "grad_out[0]"), ("param", "a.weight", "value"), ("grad", "a.weight", "grad"),
    ]  # fmt: skip
    return [
        Reading(
            step=step, microbatch=0, phase=phase, site=site, port=port, order=order, dtype="float32", shape=(4, 4),
            summary=Summary(n=16, n_hist=16, min=-1.0, max=scale, absmax=scale, sum=scale, sumsq=4.0 * scale**2,
                            hist_first=-3, hist=(4, 8, 4)),
        )
        for order, (phase, site, port) in enumerate(spots)
    ]  # fmt: skip


def _write(directory: Path, *, seal: bool, scale: float = 1.0, n_steps: int = 3) -> Path:
    writer = Writer(directory, rank=0, warn=lambda text: None)
    for step in range(n_steps):
        writer.write(_readings(step, scale), StepRecord(step=step, loss=1.0))
    writer.close(seal=seal)
    (directory / "run.json").write_text('{"format": 1, "name": "r", "world_size": 1}')
    return directory


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> dict[bool, Path]:
    folder = tmp_path_factory.mktemp("good")
    return {seal: _write(folder / str(seal), seal=seal) for seal in (True, False)}


def _answer(baseline: Path, candidate: Path) -> str:
    """The status, or the slug of the one error."""
    try:
        found = compare_runs(open_run(baseline), open_run(candidate))
    except HypocenterError as error:
        return error.slug
    json.render(found)
    terminal.render(found)
    return found.status


def test_whole_recordings_are_the_same(good):
    assert _answer(good[True], good[False]) == "same"


@_QUIET
@given(data=st.data())
def test_random_bytes_in_any_file_give_an_answer_or_one_error(good, tmp_path_factory, data):
    damaged = tmp_path_factory.mktemp("damaged") / "run"
    shutil.copytree(good[data.draw(st.booleans(), label="sealed")], damaged)
    files = sorted(path for path in damaged.rglob("*") if path.is_file())
    victim = data.draw(st.sampled_from(files), label="file")
    content = bytearray(victim.read_bytes())
    how = data.draw(st.sampled_from(["cut", "replaced", "flipped"]), label="how")
    if how == "cut":
        content = content[: data.draw(st.integers(0, len(content)))]
    elif how == "replaced":
        content = bytearray(data.draw(st.binary(max_size=300)))
    else:
        for at in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), min_size=1, max_size=8)):
            content[at] ^= data.draw(st.integers(1, 255))
    victim.write_bytes(bytes(content))

    answers = {_answer(good[True], damaged), _answer(damaged, good[True])}

    assert answers <= {"same", "diverged", "cannot-tell", "no-recording", "corrupt-recording"}


@pytest.mark.night
@_QUIET
@given(
    numbers=st.lists(st.floats(width=64), min_size=5, max_size=5),
    counts=st.lists(st.integers(-(2**62), 2**62), min_size=4, max_size=4),
    order=st.integers(-(2**62), 2**62),
    call=st.integers(-(2**31), 2**31 - 1),
    text=st.text(max_size=10),
    sketch=st.none() | st.lists(st.floats(width=32), max_size=3) | st.just([float("nan")] * 256),
)
def test_any_values_give_an_answer(good, tmp_path_factory, numbers, counts, order, call, text, sketch):
    directory = tmp_path_factory.mktemp("odd") / "run"
    writer = Writer(directory, rank=0, warn=lambda text: None)
    odd = Reading(
        step=0, microbatch=-1, phase=text, site=text, port=text, order=order, call=call, dtype=text, shape=(-1,),
        summary=Summary(
            n=counts[0], n_nan=counts[1], n_posinf=counts[2], n_neginf=counts[3], min=numbers[0], max=numbers[1],
            absmax=numbers[2], sum=numbers[3], sumsq=numbers[4], sketch=None if sketch is None else tuple(sketch),
        ),
    )  # fmt: skip
    writer.write([*_readings(0), odd], StepRecord(step=0, loss=numbers[0]))
    writer.close()

    assert _answer(directory, directory) in ("same", "cannot-tell", "diverged")
    assert _answer(good[True], directory) in ("same", "cannot-tell", "diverged")


def test_what_is_cut_is_said(tmp_path):
    whole = _write(tmp_path / "whole", seal=True, n_steps=STEPS_OF_BLOCK + 3)
    cut = _write(tmp_path / "cut", seal=False, n_steps=STEPS_OF_BLOCK + 3)
    stream = next(cut.rglob("events-*.arrow"))
    stream.write_bytes(stream.read_bytes()[:-700])

    found = compare_runs(open_run(whole), open_run(cut))

    assert found.n_steps == STEPS_OF_BLOCK  # the block of the last three is gone
    assert any("cut or damaged" in note for note in found.notes)


def test_recordings_without_a_common_site_cannot_be_told(good, tmp_path):
    writer = Writer(tmp_path / "other", rank=0, warn=lambda text: None)
    summary = Summary(n=7, n_hist=7, absmax=9.0, sum=5.0, sumsq=99.0)
    writer.write(
        [Reading(step=0, microbatch=0, phase="param", site="z", port="value", order=0, shape=(7,), dtype="float64",
                 summary=summary)],
        StepRecord(step=0),
    )  # fmt: skip
    writer.close()

    found = compare_runs(open_run(good[True]), open_run(tmp_path / "other"))

    assert found.status == "cannot-tell"
    assert found.rows == ()
    assert found.sentence.startswith("cannot tell: no site of one run has a counterpart in the other")


def test_steps_that_count_from_one_are_shifted(good, tmp_path):
    writer = Writer(tmp_path / "later", rank=0, warn=lambda text: None)
    for step in range(10, 13):
        writer.write(_readings(step), StepRecord(step=step, loss=1.0))
    writer.close()

    found = compare_runs(open_run(good[True]), open_run(tmp_path / "later"))

    assert (found.status, found.n_steps) == ("same", 3)
    assert "step s of the baseline is compared with step s+10 of the candidate" in found.notes
