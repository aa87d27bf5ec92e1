"""Whether what was trained moved: said at the end, and only where most of it stood still."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run


class Undone(torch.optim.SGD):
    """Puts back what it has updated, as a wrapper that works on copies it never copies back."""

    def step(self, closure=None):
        before = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        super().step(closure)
        with torch.no_grad():
            for p, old in zip((p for group in self.param_groups for p in group["params"]), before, strict=True):
                p.copy_(old)


def model(n=3):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(n)))


def trained(net, make, folder, n_steps=4, **options):
    optimizer = make([p for p in net.parameters() if p.requires_grad], **options)
    with hypocenter.watch(out=str(folder)):
        for _ in range(n_steps):
            loss = net(torch.randn(8, 4)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return diagnose(open_run(folder))


@pytest.mark.parametrize(("make", "lr"), [(torch.optim.SGD, 0.1), (torch.optim.AdamW, 1e-6), (torch.optim.SGD, 1e-5)])
def test_parameters_that_move_a_little_are_healthy(tmp_path, make, lr):
    assert trained(model(), make, tmp_path / "r", lr=lr).status == "healthy"


def test_updates_that_are_undone_are_not_healthy(tmp_path):
    found = trained(model(), Undone, tmp_path / "r", lr=0.1)

    assert found.status == "cannot-tell"
    assert found.why[0] == "6 of 6 parameters that got gradients did not move in the run"


def test_a_learning_rate_of_zero_is_named(tmp_path):
    found = trained(model(), torch.optim.SGD, tmp_path / "r", lr=0.0)

    assert found.why[0].endswith("did not move in the run: the learning rate was 0 at every step")


def test_an_update_below_the_resolution_of_the_format_is_not_healthy(tmp_path):
    torch.set_default_dtype(torch.bfloat16)
    try:
        found = trained(model(), torch.optim.SGD, tmp_path / "r", lr=1e-9)
    finally:
        torch.set_default_dtype(torch.float32)

    assert found.status != "healthy"


def test_a_frozen_half_gets_no_gradients_and_is_no_doubt(tmp_path):
    net = model(4)
    for layer in net[:3]:
        layer.requires_grad_(False)

    assert trained(net, torch.optim.SGD, tmp_path / "r", lr=0.1).status == "healthy"


def test_rows_of_a_table_that_were_never_asked_for_are_no_doubt(tmp_path):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(1000, 4)

        def forward(self, x):
            return self.table(torch.tensor([[7, 9]])).sum() * x.mean()

    assert trained(Words(), torch.optim.SGD, tmp_path / "r", lr=0.1).status == "healthy"


def test_an_exception_inside_of_watch_is_a_death(tmp_path):
    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no state")

    with pytest.raises(RuntimeError, match="no state"):
        trained(model(), Broken, tmp_path / "r", lr=0.1)

    (finding,) = diagnose(open_run(tmp_path / "r")).findings
    assert (finding.code, finding.step, finding.phase) == ("HC324", 0, "optimizer")
