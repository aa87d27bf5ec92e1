"""Operators that take functions, FlexAttention's for one: torch refuses them under a mode that does not know them."""

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

flex = pytest.importorskip("torch.nn.attention.flex_attention")
pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def falling(score, batch, head, at, of):
    return score - 0.1 * (at - of).abs()


def logarithm(score, batch, head, at, of):
    return torch.log(score * 0.0 - 1.0)


class Net(nn.Module):
    """On a CPU FlexAttention has no backward: its inputs are the batch."""

    def __init__(self):
        super().__init__()
        self.bad = False
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        y = flex.flex_attention(x, x, x, score_mod=logarithm if self.bad else falling)
        return self.head(y)


def train(out, *, bad_step=-1, **options):
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with hypocenter.watch(net, optimizer, out=out, cure="off", **options):
        for step in range(3):
            net.bad = step == bad_step
            net(torch.randn(1, 2, 16, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return diagnose(open_run(out))


def test_it_is_replayed_and_blamed(tmp_path):
    first = train(tmp_path / "run", bad_step=1).findings[0]

    assert (first.step, first.op) == (1, "higher_order.flex_attention")
    assert first.source.text.startswith("y = flex.flex_attention(x, x, x")
    assert "attention" in first.title


@pytest.mark.parametrize("options", [{"sdc_check": "every=1"}, {"level": "ops"}, {"level": "modules"}], ids=str)
def test_a_healthy_run_with_it_stays_one(tmp_path, options):
    plain = train(tmp_path / "plain")
    watched = train(tmp_path / "run", **options)

    assert (plain.status, watched.status) == ("healthy", "healthy")
