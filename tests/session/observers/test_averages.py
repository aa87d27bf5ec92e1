"""Low-precision copies of a model: which are followed, and which of them are said to be frozen."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.detect.update_rows import EMA_LOST, SITE, share
from hypocenter.record.reader import open_run

torch.set_num_threads(1)
N_STEPS = 260  # an average of decay 0.9999 owes an ulp by then where the model has moved by 64
AveragedModel, ema_of = torch.optim.swa_utils.AveragedModel, torch.optim.swa_utils.get_ema_multi_avg_fn


def fresh() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 3))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.sign() * (p.abs() + 0.2))
    return model


def train(model, after_step, n_steps=N_STEPS):
    """Weights move by about half their size, whatever the data."""
    optimizer = torch.optim.SGD(model.parameters(), lr=2e-3)
    for _ in range(n_steps):
        (
            model(torch.ones(1, 8, dtype=model[0].weight.dtype)).sum() * 0 + sum(p.sum() for p in model.parameters())
        ).backward()
        optimizer.step()
        optimizer.zero_grad()
        after_step()


def totals(out) -> list:
    return [r for r in open_run(out).readings(phase="optimizer") if r.port == EMA_LOST and r.site == SITE]


def lerp(average, model, weight):
    def update():
        with torch.no_grad():
            for theirs, ours in zip(average.parameters(), model.parameters(), strict=True):
                theirs.lerp_(ours.to(theirs.dtype), weight)

    return update


@pytest.mark.night
def test_a_hand_written_average_of_decay_09999_is_frozen(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        model = fresh()
        average = copy.deepcopy(model).bfloat16()
        start = [p.clone() for p in average.parameters()]
        train(model, lerp(average, model, 1e-4))

    assert all(torch.equal(a, b) for a, b in zip(start, average.parameters(), strict=True))
    last = totals(tmp_path / "run")[-1]
    assert (share(last), last.module, last.dtype, last.call) == (1.0, "Sequential", "bfloat16", 0)
    assert last.summary.n > 0.25 * last.shape[0]


@pytest.mark.slow
@pytest.mark.parametrize("made_before", [False, True])
def test_an_averaged_model_is_found(tmp_path, made_before):
    model = fresh().bfloat16()
    before = AveragedModel(model, multi_avg_fn=ema_of(0.9999))

    with hypocenter.watch(out=str(tmp_path / "run")):
        average = before if made_before else AveragedModel(model, multi_avg_fn=ema_of(0.9999))
        train(model, lambda: average.update_parameters(model))

    rows = totals(tmp_path / "run")
    assert rows
    assert share(rows[-1]) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.5, 0.1, 0.02])
def test_a_fast_average_is_not_called_frozen(tmp_path, weight):
    with hypocenter.watch(out=str(tmp_path / "run")):
        model = fresh()
        average = copy.deepcopy(model).bfloat16()
        train(model, lerp(average, model, weight))

    assert [share(row) for row in totals(tmp_path / "run") if share(row) > 0.3] == []


@pytest.mark.night
def test_a_rounded_view_of_a_float32_average_is_not_called_frozen(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        model = fresh()
        exact = copy.deepcopy(model)
        shown = copy.deepcopy(model).bfloat16()
        update = lerp(exact, model, 1e-3)

        def both():
            update()
            with torch.no_grad():
                for theirs, ours in zip(shown.parameters(), exact.parameters(), strict=True):
                    theirs.copy_(ours)

        train(model, both)

    rows = totals(tmp_path / "run")
    assert rows
    assert max(share(row) for row in rows if row.summary.n > 0.25 * row.shape[0]) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_copy_that_nobody_writes_to_is_left_alone(tmp_path, dtype):
    with hypocenter.watch(out=str(tmp_path / "run")):
        model = fresh()
        reference = copy.deepcopy(model).to(dtype)
        train(model, lambda: reference(torch.ones(1, 8, dtype=dtype)), n_steps=64)

    assert totals(tmp_path / "run") == []


@pytest.mark.night
def test_a_target_network_that_is_set_now_and_then_is_not_called_frozen(tmp_path):
    steps = iter(range(N_STEPS))
    with hypocenter.watch(out=str(tmp_path / "run")):
        model = fresh()
        target = copy.deepcopy(model).bfloat16()
        train(model, lambda: target.load_state_dict(model.state_dict()) if next(steps) % 10 == 9 else None)

    assert [share(row) for row in totals(tmp_path / "run") if share(row)] == []


@pytest.mark.night
def test_writing_through_data_is_seen_once_something_moves(tmp_path):
    """`.data` leaves no version: what moves in the copy (a bias that starts at 0) shows that it is written."""
    with hypocenter.watch(out=str(tmp_path / "run")):
        model = fresh()
        with torch.no_grad():
            model[2].bias.zero_()
        average = copy.deepcopy(model).bfloat16()

        def update():
            for theirs, ours in zip(average.parameters(), model.parameters(), strict=True):
                theirs.data.mul_(0.9999).add_(ours.data.bfloat16(), alpha=1e-4)

        train(model, update)

    last = totals(tmp_path / "run")[-1]
    assert 0.9 < share(last) < 1.0


def test_layers_cloned_into_the_model_are_no_copies_of_it(tmp_path):
    with hypocenter.watch(out=str(tmp_path / "run")):
        layer = nn.Linear(8, 8).bfloat16()
        model = nn.Sequential(*(copy.deepcopy(layer) for _ in range(3)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(40):
            model(torch.ones(1, 8, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()

    assert totals(tmp_path / "run") == []
