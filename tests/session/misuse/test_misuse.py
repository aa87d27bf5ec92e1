"""Mixed precision used wrongly is recognised from what it does; used rightly, it is left in peace."""

from __future__ import annotations

import pytest
import torch
from by_day import first_of_each
from loops_at_fault import (
    ClipsAndNeverTakesTheScaleOut,
    ClipsByHandTooEarly,
    ClipsThenUnscales,
    ClipsTooEarly,
    ClipsValuesTooEarly,
    DividesByHand,
    NeverScales,
    NeverTakesTheScaleOut,
    ScalesOneOfTwo,
    SecondOfTwoClipsTooEarly,
    TwoScalers,
    UnscalesTooEarly,
    UpdatesBetweenTwoOptimizers,
)
from loops_in_order import (
    Accumulates,
    AccumulatesAndDividesGradients,
    Adversarial,
    AdversarialZeroed,
    BacksOff,
    ClipsRightly,
    ClipsToAScaledNorm,
    Disabled,
    LeavesOutAnUpdate,
    MultipliesByTheScaleByHand,
    OnlyMeasures,
    OnlyOneLossScaled,
    ScalesBoth,
    ScalesByHand,
    ScalesInAFunction,
    SkippedByUs,
    TakesTheScaleOutByHand,
    TakesTheScaleOutInItsStep,
    TwoOptimizers,
    TwoOptimizersOneScaler,
    UnscalesAndSteps,
)
from loops_with_facts import (
    AverageRunsAhead,
    BackwardInside,
    BackwardInsideOverflows,
    FusedScheduleRunsAhead,
    LeavesAutocastEachStep,
    LongScheduleRunsAhead,
    NeverLeavesAutocast,
    ResumesWell,
    ResumesWithFittingScaler,
    ResumesWithoutScaler,
    ScalerWithBfloat16,
    ScheduleByEpoch,
    ScheduleHeldBack,
    SchedulePerMicrobatch,
    ScheduleRunsAhead,
    ScheduleTwiceAnUpdate,
)
from scaled_loop import Program, found, trained
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

pytestmark = pytest.mark.filterwarnings("ignore:(Detected call of|Seems like)")  # of a first update that is skipped


WHOLE = ("HC214", "note", 15)  # the counts of the whole run, at its last step


@pytest.mark.parametrize(
    ("program", "expected"),
    first_of_each(
        [
            (ClipsTooEarly, ("HC211", "error", 0)),
            (ClipsThenUnscales, ("HC211", "error", 0)),
            (ClipsValuesTooEarly, ("HC211", "error", 0)),
            (ClipsByHandTooEarly, ("HC211", "error", 0)),
            (SecondOfTwoClipsTooEarly, ("HC211", "error", 0)),
            (DividesByHand, ("HC212", "error", 0)),
            (TwoScalers, ("HC212", "error", 0)),
            (UnscalesTooEarly, ("HC212", "error", 0)),
            (UpdatesBetweenTwoOptimizers, ("HC212", "warning", 1)),
            (NeverScales, ("HC213", "error", 0)),
            (ScalesOneOfTwo, ("HC213", "error", 1)),
            (NeverTakesTheScaleOut, ("HC213", "error", 0)),
            (ClipsAndNeverTakesTheScaleOut, ("HC213", "error", 0)),
        ],
        lambda case: case[1][0],
    ),
    ids=lambda value: value.__name__ if isinstance(value, type) else value[0],
)
def test_a_fault_is_named_once_at_its_first_step(program, expected, tmp_path):
    assert found(program, tmp_path / "run") == [expected]


@pytest.mark.parametrize(
    ("program", "expected"),
    first_of_each(
        [
            (ScheduleRunsAhead, [("HC214", "warning", 0), WHOLE]),
            (FusedScheduleRunsAhead, [("HC214", "warning", 0), WHOLE]),
            (LongScheduleRunsAhead, [("HC214", "note", 0), WHOLE]),
            (AverageRunsAhead, [("HC214", "note", 0), WHOLE]),
            (ResumesWithoutScaler, [("HC215", "warning", 0)]),
            (ResumesWithFittingScaler, [("HC215", "note", 0)]),
            (BackwardInside, [("HC216", "note", 0)]),
            (BackwardInsideOverflows, [("HC216", "warning", 2)]),  # before, it is not finite outside either
            (ScalerWithBfloat16, [("HC217", "note", 0)]),
            (NeverLeavesAutocast, [("HC216", "note", 0), ("HC218", "error", 1)]),
            (LeavesAutocastEachStep, [("HC216", "note", 0)]),
            (ScheduleHeldBack, []),
            (ScheduleByEpoch, []),
            (SchedulePerMicrobatch, [("HC214", "note", 0)]),
            (ScheduleTwiceAnUpdate, []),
            (ResumesWell, []),
        ],
        lambda case: tuple(code for code, *_ in case[1]),
    ),
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_is_only_a_fact_is_a_note(program, expected, tmp_path):
    assert found(program, tmp_path / "run") == expected


def test_the_counts_of_the_whole_run_are_told_with_the_finding(tmp_path):
    class Twenty(ScheduleRunsAhead):
        n_steps = 20

    found(Twenty, tmp_path / "run")

    recorded = open_run(tmp_path / "run")
    n_skipped = sum(record.skipped for _, record in recorded.step_records())
    told = [f for f in diagnose(recorded).findings if f.code == "HC214"]
    assert n_skipped
    assert [f.severity for f in told] == ["warning"]
    assert f"in all, {20 - n_skipped} updates against 20 steps of LinearLR" in told[0].then


HEALTHY = [
    ClipsRightly, ClipsToAScaledNorm, OnlyMeasures, LeavesOutAnUpdate, Accumulates,
    AccumulatesAndDividesGradients, TwoOptimizersOneScaler,
    Adversarial, AdversarialZeroed, OnlyOneLossScaled, Disabled, ScalesByHand, MultipliesByTheScaleByHand,
    ScalesInAFunction, SkippedByUs, BacksOff, Program, TakesTheScaleOutByHand, UnscalesAndSteps,
    TakesTheScaleOutInItsStep, TwoOptimizers, ScalesBoth,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__)
def test_right_use_is_left_in_peace(program, tmp_path):
    assert found(program, tmp_path / "run") == []


ALL = [
    *(ClipsTooEarly, ClipsValuesTooEarly, DividesByHand, UnscalesTooEarly, UpdatesBetweenTwoOptimizers, NeverScales),
    *(FusedScheduleRunsAhead, AverageRunsAhead, ResumesWithoutScaler, BackwardInside, BackwardInsideOverflows),
    *(NeverLeavesAutocast, LeavesAutocastEachStep, Adversarial, TwoOptimizersOneScaler, BacksOff),
]


@pytest.mark.slow
@pytest.mark.parametrize("program", ALL, ids=lambda program: program.__name__)
def test_training_is_bit_identical(program, tmp_path):
    trained()
    plain = program()
    weights = plain.run()
    random = torch.get_rng_state()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = program()
        watched_weights = watched.run()

    assert all(torch.equal(a, b) for a, b in zip(weights, watched_weights, strict=True))
    assert torch.equal(random, torch.get_rng_state())
    assert str(plain.opt.state_dict()) == str(watched.opt.state_dict())
    assert plain.scaler.state_dict() == watched.scaler.state_dict()
    if isinstance(plain, ScheduleRunsAhead):
        assert plain.scheduler.state_dict() == watched.scheduler.state_dict()


def test_everything_patched_is_put_back(tmp_path):
    names = ("__init__", "scale", "unscale_", "update", "load_state_dict", "get_scale", "step")
    schedulers = torch.optim.lr_scheduler
    before = [getattr(torch.amp.GradScaler, name) for name in names]
    before += [nn.utils.clip_grad_value_, schedulers.LRScheduler.step, schedulers.SequentialLR.step]

    with hypocenter.watch(out=str(tmp_path / "run")):
        Program().run()

    after = [getattr(torch.amp.GradScaler, name) for name in names]
    assert [*after, nn.utils.clip_grad_value_, schedulers.LRScheduler.step, schedulers.SequentialLR.step] == before


def test_an_error_in_an_observer_leaves_training_alone(tmp_path, monkeypatch, capsys):
    from hypocenter.session.observers.scaling import Scaling

    monkeypatch.setattr(Scaling, "scaled", lambda self, scaler, outputs: 1 / 0)
    plain = Program().run()

    with hypocenter.watch(out=str(tmp_path / "run")):
        watched = Program().run()

    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert capsys.readouterr().err.count("no longer followed after an internal error") == 1
