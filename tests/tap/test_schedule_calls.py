"""Steps of schedulers and averages are told once each, whoever makes them."""

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from hypocenter.tap import schedule_calls


@pytest.fixture
def told():
    calls = []
    undo = schedule_calls.attach(
        lambda scheduler, optimizer: calls.append((type(scheduler).__name__, optimizer)), calls.append
    )
    yield calls
    undo()


def optimizer():
    return torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)


def test_the_first_step_of_a_constructor_is_not_told(told):
    opt = optimizer()
    scheduler = lr_scheduler.StepLR(opt, 3)
    assert told == []

    opt.step()
    scheduler.step()

    assert told == [("StepLR", opt)]


def test_a_scheduler_of_schedulers_counts_once(told):
    opt = optimizer()
    parts = [lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)]
    scheduler = lr_scheduler.SequentialLR(opt, parts, milestones=[1])
    opt.step()
    told.clear()

    for _ in range(3):
        scheduler.step()

    assert told == [("SequentialLR", opt)] * 3


@pytest.mark.parametrize("metric", [1.0, torch.tensor(1.0)])
def test_a_scheduler_with_a_step_of_its_own(told, metric):
    opt = optimizer()
    lr_scheduler.ReduceLROnPlateau(opt).step(metric)

    assert told == [("ReduceLROnPlateau", opt)]


def test_an_average_belongs_to_no_optimizer(told):
    model = torch.nn.Linear(2, 1)
    swa_utils.AveragedModel(model).update_parameters(model)

    assert told == [("AveragedModel", None)]


def test_an_error_in_the_listener_is_said_once_and_the_step_is_done():
    said = []
    undo = schedule_calls.attach(lambda *_: 1 / 0, said.append)
    opt = optimizer()
    scheduler = lr_scheduler.StepLR(opt, 1)
    opt.step()

    scheduler.step()
    scheduler.step()
    undo()

    assert scheduler.last_epoch == 2
    assert len(said) == 1
