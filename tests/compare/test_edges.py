"""Rows made by hand for what programs rarely show: masks of infinities, errors that build up, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from hypocenter.compare.comparison import Comparison
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.nouns import Phase, Reading, StepRecord, Summary
from hypocenter.record.reader import open_run
from hypocenter.record.writer import Writer


def row(phase: Phase, site: str, port: str, norm: float, *, call: int = 0, n: int = 100, dtype="float32") -> Reading:
    """A row whose only statistic is its norm."""
    summary = Summary(n=n, n_hist=n, min=-1.0, max=1.0, absmax=1.0, sum=norm if n == 1 else 0.0, sumsq=norm**2)
    return Reading(
        step=0, microbatch=0, phase=phase, site=site, port=port, order=0, call=call, dtype=dtype, shape=(n,),
        summary=summary,
    )  # fmt: skip


def numbered(rows: Sequence[Reading], step: int = 0) -> list[Reading]:
    return [replace(one, order=order, step=step) for order, one in enumerate(rows)]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    """A function that records steps, each a list of rows."""

    def write(name: str, *steps: Sequence[Reading]) -> Path:
        writer = Writer(tmp_path / name, rank=0, warn=lambda text: None)
        for step, rows in enumerate(steps):
            writer.write(numbered(rows, step), StepRecord(step=step, loss=1.0))
        writer.close()
        return tmp_path / name

    return write


def compare(baseline: Path, candidate: Path, *noise: Path) -> Comparison:
    options = Options(noise=[open_run(path) for path in noise])
    return compare_runs(open_run(baseline), open_run(candidate), options=options)


def chain(errors: Sequence[float]) -> list[Reading]:
    """Modules one after another; `errors[i]` is the relative error of what module i takes."""
    rows = []
    for i, (taken, given) in enumerate(pairwise(errors)):
        rows += [
            row("forward", f"m{i}", "in[0]", 10.0 * (1 + taken)),
            row("forward", f"m{i}", "out[0]", 10 * (1 + given)),
        ]
    return rows


def test_errors_that_build_up_accuse_nobody_in_particular(run):
    noise = [1e-4] * 9
    growing = [1e-4 * 1.5**i for i in range(9)]

    found = compare(run("a", chain([0.0] * 9)), run("b", chain(growing)), run("c", chain(noise)))

    assert found.status == "diverged"
    assert "builds up until" in found.sentence
    assert found.amplifications
    assert all(1.4 < one.factor < 1.6 for one in found.amplifications)


def test_a_jump_among_noise_is_the_module_that_makes_it(run):
    errors = [1e-4] * 5 + [5e-2] * 4

    found = compare(run("a", chain([0.0] * 9)), run("b", chain(errors)), run("c", chain([1e-4] * 9)))

    assert (found.status, found.first.site, found.first.port) == ("diverged", "m4", "out[0]")
    assert "builds up" not in found.sentence


def test_a_single_row_just_beyond_the_floor_is_not_an_accusation(run):
    errors = [0.0] * 8 + [4.5e-4]

    found = compare(run("a", chain([0.0] * 9)), run("b", chain(errors)), run("c", chain([1e-4] * 9)))

    assert found.status == "cannot-tell"
    assert found.first is None


def test_one_spot_of_many_just_beyond_its_floor_is_what_chance_gives(run):
    noise = [1e-4] * 300
    errors = [*noise[:200], 4.5e-4, *noise[201:]]

    found = compare(run("a", chain([0.0] * 300)), run("b", chain(errors)), run("c", chain(noise)))

    assert found.status == "same", found.sentence
    assert found.first is None
    assert found.why == ("2 of 598 rows are between noise and a difference, which is what chance gives among so many",)


def test_one_spot_of_many_far_beyond_its_floor_is_a_difference(run):
    noise = [1e-4] * 300
    errors = [*noise[:200], 6e-3, *noise[201:]]

    found = compare(run("a", chain([0.0] * 300)), run("b", chain(errors)), run("c", chain(noise)))

    assert (found.status, found.first.site) == ("diverged", "m199")


def test_a_tenth_of_the_spots_just_beyond_their_floors_cannot_be_told(run):
    noise = [1e-4] * 300
    errors = [*noise[:200], *[4.5e-4] * 30, *noise[230:]]

    found = compare(run("a", chain([0.0] * 300)), run("b", chain(errors)), run("c", chain(noise)))

    assert found.status == "cannot-tell"
    assert found.first is None


def test_a_mask_of_infinities_against_the_lowest_number_cannot_be_told_and_accuses_nobody(run):
    def rows(infinite: bool) -> list[Reading]:
        mask = row("forward", "m0", "in[mask]", 1.0)
        filled = Summary(n=100, n_hist=100, min=0.0, max=0.0, sumsq=0.0, n_neginf=30) if infinite else Summary(
            n=100, n_hist=100, min=-3e38, max=0.0, absmax=3e38, sum=-9e39, sumsq=1e80
        )  # fmt: skip
        return [replace(mask, summary=filled, literal_inf=infinite), *chain([0.0] * 4)]

    found = compare(run("a", rows(True)), run("b", rows(False)))

    assert found.status == "same"
    assert any("hold nothing that can be compared" in note for note in found.notes)
    assert any(one.verdict == "cannot-tell" and one.distance is None for one in found.rows)


def test_the_call_of_a_shared_module_is_told(run):
    def rows(error: float) -> list[Reading]:
        return [
            row("forward", "shared", "in[0]", 1.0), row("forward", "shared", "out[0]", 2.0),
            row("forward", "other", "in[0]", 2.0), row("forward", "other", "out[0]", 3.0),
            row("forward", "shared", "in[0]", 3.0, call=1), row("forward", "shared", "out[0]", 4.0 + error, call=1),
        ]  # fmt: skip

    found = compare(run("a", rows(0.0)), run("b", rows(1.0)))

    assert (found.first.site, found.first.port, found.first.row.pair.baseline[0].call) == ("shared", "out[0]", 1)
    assert found.first.inputs_agree


def test_rows_of_one_side_are_listed_and_do_not_hide_the_difference(run):
    rows = chain([0.0] * 5)
    more = [row("forward", "hook", "out[0]", 7.0, n=31), *chain([0.0, 0.0, 0.0, 0.5, 0.5])]

    found = compare(run("a", rows), run("b", more))

    assert (found.status, found.first.site) == ("diverged", "m2")
    assert [card.spot.site for card in found.matching.unmatched_candidate] == ["hook"]


def test_recomputed_rows_are_not_calls(run):
    rows = chain([0.0] * 4)
    again = [replace(one, recompute=True, summary=replace(one.summary, sumsq=9.0)) for one in rows]

    found = compare(run("a", rows), run("b", [*rows, *again]))

    assert (found.status, found.n_rows) == ("same", 6)


def test_parameters_that_part_at_a_later_step_are_the_updates_before(run):
    def step(weight: float, gradient: float = 0.1) -> list[Reading]:
        return [
            *chain([0.0] * 3),
            row("param", "m0.weight", "value", weight),
            row("grad", "m0.weight", "grad", gradient),
        ]

    found = compare(run("a", step(1.0), step(1.1)), run("b", step(1.0), step(1.3)))
    explained = compare(run("c", step(1.0), step(1.1)), run("d", step(1.0, 0.3), step(1.3)))

    assert (found.first.step, found.first.phase, found.first.site) == (0, "optimizer", "m0.weight")
    assert (explained.first.step, explained.first.phase, explained.first.site) == (0, "grad", "m0.weight")


def test_the_learning_rate_acts_after_the_gradients(run):
    def step(rate: float, out: float) -> list[Reading]:
        return [*chain([0.0, out, out]), row("optimizer", "lr", "value", rate, n=1)]

    found = compare(run("a", step(0.1, 0.0)), run("b", step(0.2, 0.5)))
    rate_only = compare(run("c", step(0.1, 0.0)), run("d", step(0.2, 0.0)))

    assert (found.first.phase, found.first.site) == ("forward", "m0")
    assert (rate_only.first.phase, rate_only.first.site) == ("optimizer", "lr")


def test_a_pair_s_row_says_since_when_it_differs_and_where_it_is_worst(run):
    same = [row("forward", "m", "in[0]", 10.0), row("forward", "m", "out[0]", 10.0)]
    errors = [0.0, 0.0, 0.2, 0.1, 0.4, 0.0]
    steps = [[same[0], row("forward", "m", "out[0]", 10.0 * (1 + error))] for error in errors]

    found = compare(run("a", *[same] * len(errors)), run("b", *steps))

    assert [(one.since, one.step) for one in found.rows if one.verdict == "differs"] == [(2, 4)]
    assert [one.since for one in found.rows if one.verdict != "differs"] == [None]


def test_where_every_bit_must_stay_the_smallest_error_is_named(run):
    runs = [open_run(run(name, chain(errors))) for name, errors in (("a", [0.0] * 5), ("b", [0.0] * 3 + [1e-7] * 2))]

    exact = compare_runs(*runs, options=Options(is_exact=True))

    assert compare_runs(*runs).status == "same"
    assert (exact.status, exact.first.site, exact.first.port) == ("diverged", "m2", "out[0]")


def test_steps_stand_against_each_other_as_they_are_told_to(run):
    steps = [chain([0.0, float(step)]) for step in range(4)]
    whole, later = open_run(run("whole", *steps)), open_run(run("later", *steps[2:]))

    found = compare_runs(whole, later, options=Options(shift=-2))

    assert (found.first, found.n_steps) == (None, 2)
    assert {row.verdict for row in found.rows} == {"equal"}
    assert compare_runs(whole, later, options=Options(shift=0)).status == "diverged"
