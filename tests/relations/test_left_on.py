"""What stays on in evaluation: functions of dropout that nobody tells the mode of the model."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import functional
from torch.nn.functional import dropout

from hypocenter.testing import RelationBroken, check_relations

attend = F.scaled_dot_product_attention


class Net(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.before, self.head, self.drop, self.own = nn.Linear(6, 8), nn.Linear(8, 3), drop, nn.Dropout(0.4)
        self.partial = functools.partial(F.dropout, p=0.4, training=True)

    def forward(self, x):
        return self.head(self.drop(self, self.before(x)).mean(1))


LEFT_ON = {
    "default": lambda m, h: F.dropout(h, 0.4),
    "default, by name": lambda m, h: dropout(h, p=0.4).relu(),
    "default, over lines": lambda m, h: functional.dropout(
        h,
        p=0.4,
    ),
    "one of two in a line": lambda m, h: F.dropout(h, 0.4) if m.head else F.dropout(h, 0.4, m.training),
    "whole channels": lambda m, h: F.dropout1d(h, 0.4),
    "attention": lambda m, h: attend(h, h, h, dropout_p=0.4),
}
MEANT = {
    "said": lambda m, h: F.dropout(h, 0.4, training=True),
    "said by place": lambda m, h: F.dropout(h, 0.4, True),
    "said, and not below torch": lambda m, h: torch.dropout(h, 0.4, True),
    "said elsewhere": lambda m, h: m.partial(h),
}
OFF = {
    "by the mode": lambda m, h: F.dropout(h, 0.4, m.training),
    "by the mode, by name": lambda m, h: F.dropout(h, p=0.4, training=m.training),
    "a module": lambda m, h: m.own(h),
    "nothing is dropped": lambda m, h: F.dropout(h, 0.0),
    "attention, by the mode": lambda m, h: attend(h, h, h, dropout_p=0.4 if m.training else 0.0),
    "attention": lambda m, h: attend(h, h, h),
    "its default is off": lambda m, h: F.alpha_dropout(h, 0.4),
    "in training only": lambda m, h: F.dropout(h, 0.4) if m.training else h,
}


def looked(drop):
    x, y = torch.randn(6, 5, 6), torch.randint(0, 3, (6,))
    try:
        return check_relations(Net(drop).train(), x, loss=F.cross_entropy, labels=y).losses
    except RelationBroken as broken:
        return broken.looked.losses


@pytest.mark.parametrize("name", LEFT_ON)
def test_what_nobody_switches_off_is_told(name):
    (found,) = looked(LEFT_ON[name])

    assert (found.code, found.wrong.title, found.wrong.is_note) == ("HC267", "dropout stays on in evaluation", False)
    assert "drops 40%" in found.wrong.why
    assert found.source is not None
    assert found.source.file == __file__


@pytest.mark.parametrize("name", MEANT)
def test_what_the_program_says_is_a_note(name):
    (found,) = looked(MEANT[name])

    assert (found.code, found.wrong.is_note) == ("HC267", True)


@pytest.mark.parametrize("name", OFF)
def test_what_is_off_is_not_told(name):
    assert not looked(OFF[name])


def test_noise_in_the_code_of_training_is_left_alone():
    model, x, y = Net(OFF["a module"]), torch.randn(6, 5, 6), torch.randint(0, 3, (6,))

    def loss(outputs, labels):
        return F.cross_entropy(F.dropout(outputs, 0.1), labels)

    assert not check_relations(model, x, loss=loss, labels=y).losses
