"""An operator in a module that torch itself brings stands at the line that called the module, also when done again."""

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


def layer(weight):
    made = nn.Linear(4, 4)
    nn.init.constant_(made.weight, weight)
    return made


def of_a_sequential(model, x):
    return model(x).sum()  # <- called here


def of_a_criterion(model, x):
    y = model(x)
    return nn.PoissonNLLLoss()(y, x)  # <- called here


@pytest.mark.parametrize(
    ("model", "loss_of"),
    [
        (nn.Sequential(layer(1e38), nn.ReLU()), of_a_sequential),
        (layer(1e38), of_a_sequential),
        (layer(1e3), of_a_criterion),
    ],
    ids=["sequential", "layer", "criterion"],
)
def test_the_line_is_that_of_the_call(tmp_path, model, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with hypocenter.watch(out=str(tmp_path / "run")):
        loss_of(model, torch.ones(3, 4)).backward()
        optimizer.step()

    found = diagnose(open_run(tmp_path / "run")).findings[0]
    assert found.source is not None, found
    assert found.source.text.endswith("# <- called here"), found
