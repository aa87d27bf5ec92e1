"""A program's warnings are those it has without us: as many, of the same lines, under every filter."""

from __future__ import annotations

import pytest

FILTERS = ("default", "once", "always", "module")

TRAINS = """
import sys, traceback, warnings
import torch
import torch.nn.functional as F
from torch import nn

warnings.simplefilter({filter!r})
torch.manual_seed(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.soft = nn.Linear(3, 1), nn.Softmax()

    def forward(self, x):
        said(lambda: F.mse_loss(x[:, :1], x[0, :1].repeat(4)))
        said(lambda: self.soft(x))
        warnings.warn("of the model")
        warnings.warn("of who calls the model", stacklevel=4)
        return self.layer(x)


def said(call):
    try:
        return call()
    except UserWarning:
        traceback.print_exc()
        return torch.zeros(())


def loss_of(made, target):
    loss = said(lambda: F.mse_loss(made, target[:, 0]))
    loss = loss + said(lambda: F.softmax(made.squeeze(-1))).sum()
    said(lambda: warnings.warn("of the loss", stacklevel=2))
    return loss + made.sum()


model = Model()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0)
for step in range(3):
    batch = torch.ones(4, 3)
    said(lambda: F.mse_loss(batch, batch[0]))
    made = said(lambda: model(batch))
    loss = loss_of(model.layer(batch), batch)
    said(lambda: loss.grad)
    said(lambda: torch.autograd.backward(loss, grad_variables=None))
    said(lambda: nn.utils.clip_grad_norm_((p for p in ()), 1.0))
    said(lambda: nn.utils.clip_grad_norm(model.parameters(), 1.0))
    optimizer.step()
    said(lambda: schedule.step(step))
    optimizer.zero_grad()
    print(step, float(loss))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILTERS)
@pytest.mark.parametrize("level", ["sentinel", "modules"])
def test_warnings_of_the_model_the_loss_and_the_data_name_the_users_line(twice, kind, level):
    without, recorded = twice(TRAINS.format(filter=kind), level)

    assert without[2].count("Warning") > 5
    assert recorded == without
