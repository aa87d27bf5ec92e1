"""Statistics of a part that goes to training late are those of a run without Hypocenter, to the bit."""

from contextlib import nullcontext, redirect_stderr

import pytest
import torch
from torch import nn

import hypocenter


class Frozen(nn.Module):
    """A trunk that is frozen at first, and in evaluation."""

    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 2)
        self.set(is_trained=False)

    def set(self, *, is_trained):
        self.trunk.requires_grad_(is_trained).train(is_trained)

    def forward(self, x):
        return self.head(self.trunk(x))


def trained(watched):
    torch.manual_seed(0)
    model = Frozen()
    optimizer = torch.optim.AdamW(model.head.parameters())
    with redirect_stderr(None), watched():
        for step in range(24):
            if step == 10:
                model.set(is_trained=True)
                optimizer.add_param_group({"params": [*model.trunk.parameters()]})
            optimizer.zero_grad()
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("audit", ["auto", "every=1"])
def test_a_trunk_that_is_unfrozen(audit, tmp_path):
    plain = trained(nullcontext)
    watched = trained(lambda: hypocenter.watch(out=str(tmp_path / "run"), audit=audit))

    assert [key for key in plain if not torch.equal(plain[key], watched[key])] == []
