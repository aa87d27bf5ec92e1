"""What is noted of an operator's call: constants with their names and defaults, no sizes, no backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from hypocenter.nouns import OperatorCall
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.operator_calls import CallsMode, OperatorCalls


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.hardtanh(self.linear(x).repeat(2, 1), min_val=-float("inf"))


def calls() -> list[OperatorCall]:
    model, names = Model(), {}
    names = {id(module): name for name, module in model.named_modules()}
    context = OpContext(lambda module: names.get(id(module)))
    x, undo = torch.ones(3, 4), context.attach()
    with CallsMode(context) as mode:
        loss = model(x).sum()
        torch.autograd.grad(loss, list(model.parameters()), torch.ones(()))
    undo()
    return [call for call in mode.noted.calls if "ones" not in call.op]


def test_each_call_is_of_the_module_whose_code_makes_it():
    assert [(call.module, call.op, call.phase) for call in calls()] == [
        ("linear", "aten.addmm.default", "forward"),
        ("", "aten.repeat.default", "forward"),
        ("", "aten.hardtanh.default", "forward"),
        ("", "aten.sum.default", "loss"),
    ]


def test_constants_have_names_defaults_count_and_sizes_do_not():
    linear, repeat, hardtanh, total = calls()

    assert linear.constants == {"beta": 1, "alpha": 1}
    assert repeat.constants == {}
    assert hardtanh.constants == {"min_val": "-inf", "max_val": 1}
    assert total.constants == {}
    assert hardtanh.where.startswith("test_operator_calls.py:")


def test_only_the_first_micro_batch_is_asked_for():
    noted = OperatorCalls()

    assert [noted.is_first(0, 1), noted.is_first(0, 1), noted.is_first(0, 2), noted.is_first(1, 1)] == [
        True, True, False, False,
    ]  # fmt: skip
