"""tap/probe.py: a probe records its value and leaves it alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from hypocenter.tap.names import NameMap
from hypocenter.tap.probe import ProbeTap, record_probe


def normalised(x: torch.Tensor) -> torch.Tensor:
    return record_probe(x, "after norm")


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(normalised(self.norm(x)) * 2) * 2  # the last norm: early stop must not end before the probe


class Net(nn.Module):
    def __init__(self, mode: str = "") -> None:
        super().__init__()
        self.inner, self.mode = Inner(), mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode:
            return checkpoint(self.inner, x, use_reentrant=self.mode == "reentrant").sum()
        return record_probe({"total": self.inner(x).sum()}, "end")["total"]


@pytest.fixture
def tap(reducer, clock, warnings_given):
    names = NameMap()
    tap = ProbeTap(names, reducer, clock, warnings_given.append)
    undo = tap.attach()
    yield tap, names
    undo()
    names.close()


def test_without_a_session_the_value_comes_back_and_nothing_happens() -> None:
    x = torch.ones(1)

    assert record_probe(x, "x") is x


def test_a_probe_is_named_after_its_module_and_has_value_and_gradient(tap, reducer) -> None:
    probes, names = tap
    net = Net()
    names.add_root(net)
    x = torch.randn(2, 3)

    net(x).backward()
    readings = probes.collect(3)

    assert [(r.site, r.port, r.phase, r.module) for r in readings] == [
        ("inner.after norm", "probe", "forward", "Inner"),
        ("end", "probe[total]", "forward", "Net"),
        ("end", "grad_probe[total]", "backward", "Net"),
        ("inner.after norm", "grad_probe", "backward", "Inner"),
    ]
    assert readings[0].summary == reducer.summary(net.inner.norm(x))
    probed = net.inner.norm(x).detach().requires_grad_()
    expected = torch.autograd.grad((net.inner.norm(probed * 2) * 2).sum(), probed)[0]
    assert readings[3].summary == reducer.summary(expected)
    assert readings[0].step == 3
    assert probes.collect(4) == []


@pytest.mark.parametrize("mode", ["reentrant", "non-reentrant"])
def test_a_recompute_is_labelled_and_gives_one_gradient(tap, mode: str) -> None:
    probes, names = tap
    net = Net(mode)
    names.add_root(net)

    net(torch.randn(2, 3, requires_grad=True)).backward()

    found = [(r.port, r.recompute, r.call) for r in probes.collect(0)]
    assert sorted(found) == [("grad_probe", False, 0), ("probe", False, 0), ("probe", True, 0)]


def test_evaluation_and_compiled_code_are_left_alone(tap, clock) -> None:
    probes, names = tap
    net = Net()
    names.add_root(net)
    expected = net(torch.ones(2, 3))
    probes.collect(0)

    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2, 3)), expected)
    clock.recording = False
    net(torch.ones(2, 3))

    assert probes.collect(0) == []


def test_a_failing_probe_warns_once_and_goes_quiet(tap, reducer, warnings_given, monkeypatch) -> None:
    probes, _ = tap
    monkeypatch.setattr(reducer, "add", lambda t: 1 / 0)
    x = torch.ones(1)

    assert record_probe(x, "a") is x
    assert record_probe(x, "b") is x

    assert len(warnings_given) == 1
    assert probes.collect(0) == []
