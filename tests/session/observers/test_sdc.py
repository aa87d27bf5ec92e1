"""A process that is alone: its micro-batches done again, on schedule and on suspicion."""

import contextlib
import random
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from bench.triage import faulty

torch.set_num_threads(1)


class Net(nn.Module):
    counts = False

    def __init__(self):
        super().__init__()
        self.first, self.second, self.n_calls = nn.Linear(6, 12), nn.Linear(12, 1), 0

    def forward(self, x):
        self.n_calls += self.counts
        x = nn.functional.dropout(torch.tanh(self.first(x)), 0.2, self.training)
        return self.second(x) * (1.0 + self.n_calls)


class Counting(Net):
    counts = True


class Moody(torch.autograd.Function):
    """A kernel that adds in one order in four of five calls, in another one in the fifth."""

    chance = random.Random(0)

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * (1.0 if Moody.chance.random() < 0.8 else 1.0 + 2.0**-22)


class OfTwoMinds(Net):
    def forward(self, x):
        return self.second(Moody.apply(torch.tanh(self.first(x))))


class Chosen(torch.autograd.Function):
    """Another kernel under another setting, forward and backward."""

    @staticmethod
    def forward(ctx, x):
        return x * (1.0 + torch.backends.cuda.flash_sdp_enabled() * 2.0**-20)

    @staticmethod
    def backward(ctx, grad):
        return grad * (1.0 + torch.backends.cuda.mem_efficient_sdp_enabled() * 2.0**-20)


class OfASetting(Net):
    def forward(self, x):
        return self.second(Chosen.apply(torch.tanh(self.first(x))))


def train(out, *, make=Net, fault=None, bad_step=None, poison=None, around=contextlib.nullcontext, **options):
    torch.manual_seed(0)
    net = make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    watching = hypocenter.watch(net, optimizer, out=out, cure="off", **options) if out is not None else None
    with watching or contextlib.nullcontext(), faulty.faulty(fault) if fault else contextlib.nullcontext():
        for step in range(8):
            x = torch.randn(16, 6)
            if step == bad_step:
                if fault is not None:
                    fault.arm()
                if poison is not None:
                    x = poison(x)
            with around():
                (net(x) - x.sum(-1, keepdim=True)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach().clone() for p in net.parameters()]


def rows(out, port):
    return [row for _, row in _readings(out) if row["site"] == "sdc" and row["port"] == port]


def _readings(out):
    recorded = open_run(out)
    return [(rank, row) for rank in recorded.ranks for row in recorded.table(rank).to_pylist()]


def findings(out):
    return [f for f in diagnose(open_run(out)).findings if f.severity in ("error", "warning")]


def test_a_healthy_run_comes_out_the_same_again_and_trains_the_same(tmp_path):
    plain = train(None)
    checked = train(tmp_path / "run", sdc_check="every=2")

    assert all(torch.equal(a, b) for a, b in zip(plain, checked, strict=True))
    assert [row["step"] for row in rows(tmp_path / "run", "run")] == [0, 2, 4, 6]
    again = rows(tmp_path / "run", "again[0]")
    assert [row["n"] for row in again] == [row["n_zero"] for row in again] == [5] * 4
    assert findings(tmp_path / "run") == []


def test_without_a_schedule_nothing_is_done_again(tmp_path):
    train(tmp_path / "run")

    assert rows(tmp_path / "run", "run") == []


def test_a_flip_of_the_lowest_bit_is_seen_on_schedule(tmp_path):
    flip = faulty.Transient(element=3, bit=0, n=3)  # a weight gradient: elsewhere sums may round it away
    train(tmp_path / "run", fault=flip, bad_step=4, sdc_check="every=1")

    assert [(f.code, f.step, f.cause) for f in findings(tmp_path / "run")] == [("HC341", 4, "hardware-fault")]


def test_a_flip_that_explodes_is_looked_into_without_a_schedule(tmp_path):
    flip = faulty.Transient(element=3, bit=30, n=1)
    train(tmp_path / "run", fault=flip, bad_step=5)

    first = findings(tmp_path / "run")[0]
    assert (first.code, first.step, first.cause) == ("HC341", 5, "hardware-fault")


def test_alone_a_broken_device_and_a_wrong_kernel_look_the_same(tmp_path):
    train(tmp_path / "run", fault=faulty.Persistent(element=3, bit=28), bad_step=4, sdc_check="every=1")

    found = findings(tmp_path / "run")
    assert [(f.code, f.step, f.confidence) for f in found] == [("HC343", 4, "possible")]
    assert found[0].op == "aten.addmm.default"
    assert "one rank alone cannot tell" in " ".join(found[0].why)


def test_an_exploding_input_accuses_no_device(tmp_path):
    train(tmp_path / "run", bad_step=5, poison=lambda x: x * 1e25)

    assert rows(tmp_path / "run", "run")
    assert [f for f in findings(tmp_path / "run") if f.cause in ("hardware-fault", "kernel-bug")] == []


def test_a_program_that_counts_its_calls_accuses_no_device(tmp_path):
    train(tmp_path / "run", make=Counting, sdc_check="every=1")

    assert rows(tmp_path / "run", "state")
    assert [f for f in findings(tmp_path / "run") if f.cause in ("hardware-fault", "kernel-bug")] == []


def test_gradients_that_the_program_changes_accuse_no_device(tmp_path):
    def scaled(net):
        for p in net.parameters():
            p.grad.data.mul_(0.3)

    def noisy(net):
        for p in net.parameters():
            p.grad.add_(torch.randn_like(p.grad) * 1e-3)

    def halved(p):
        p.grad.mul_(0.5)

    def train_with(change, hook, out):
        torch.manual_seed(0)
        net = Net()
        for p in net.parameters() if hook else ():
            p.register_post_accumulate_grad_hook(halved)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
        with hypocenter.watch(net, optimizer, out=out, cure="off"):
            for step in range(24):
                x = torch.randn(16, 6)
                target = x.sum(-1, keepdim=True) * (1e4 if step == 21 else 1.0)
                optimizer.zero_grad()
                (net(x) - target).square().mean().backward()
                change(net)
                optimizer.step()
        return diagnose(open_run(out))

    cases = {"scaled": (scaled, False), "noisy": (noisy, False), "hook": (lambda net: None, True)}
    for name, (change, hook) in cases.items():
        found = train_with(change, hook, tmp_path / name)

        said = {f.code for f in found.findings if f.severity != "note"}
        assert said == {"HC401"}, (name, found.findings)  # the target is 10,000 times too large, and no device is


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2, 5])
def test_a_kernel_of_two_minds_accuses_no_device(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(Moody, "chance", random.Random(seed))
    train(tmp_path / "run", make=OfTwoMinds, sdc_check="every=1", audit="never")

    assert any(row["n_zero"] < row["n"] for row in rows(tmp_path / "run", "again[0]"))
    replays = rows(tmp_path / "run", "replays")
    assert all(row["n"] >= 4 for row in replays)
    assert findings(tmp_path / "run") == []


def test_settings_that_were_left_since_are_entered_again(tmp_path):
    def around():
        return sdpa_kernel(SDPBackend.MATH)

    plain = train(None, make=OfASetting, around=around)
    checked = train(tmp_path / "run", make=OfASetting, around=around, sdc_check="every=1")

    assert all(torch.equal(a, b) for a, b in zip(plain, checked, strict=True))
    again = rows(tmp_path / "run", "again[0]")
    assert [row["n"] for row in again] == [row["n_zero"] for row in again] == [5] * 8
    assert findings(tmp_path / "run") == []


def test_bits_of_compiled_code_are_not_compared_with_those_of_its_operators(tmp_path):
    def other_kernels(graph, inputs):
        return lambda *args: tuple(out * (1.0 + 2.0**-20) for out in graph(*args))

    def make():
        net = Net()
        net.first.forward = torch.compile(net.first.forward, backend=other_kernels)
        return net

    train(tmp_path / "run", make=make, sdc_check="every=1")

    assert {row["digest"] for row in rows(tmp_path / "run", "run")} == {None}
    assert "compiled" in rows(tmp_path / "run", "unlike")[0]["names"][0]
    assert findings(tmp_path / "run") == []


@pytest.fixture
def fp8(monkeypatch):
    """Transformer Engine's autocast, as far as one can be told of it."""

    class FP8GlobalStateManager:
        is_on = False

        @classmethod
        def is_fp8_enabled(cls):
            return cls.is_on

    module = ModuleType("transformer_engine.pytorch.fp8")
    module.FP8GlobalStateManager = FP8GlobalStateManager
    monkeypatch.setitem(sys.modules, module.__name__, module)

    @contextlib.contextmanager
    def autocast():
        FP8GlobalStateManager.is_on = True
        try:
            yield
        finally:
            FP8GlobalStateManager.is_on = False

    class Net8(Net):
        def forward(self, x):
            return super().forward(x) * (1.0 + FP8GlobalStateManager.is_on * 2.0**-20)

    return Net8, autocast


def test_bits_of_fp8_are_not_compared_with_those_of_other_scales(tmp_path, fp8):
    make, autocast = fp8

    train(tmp_path / "run", make=make, around=autocast, sdc_check="every=1")

    assert "FP8" in rows(tmp_path / "run", "unlike")[0]["names"][0]
    assert findings(tmp_path / "run") == []


@pytest.mark.parametrize("n_calls", [1, 2])
def test_weights_that_autocast_casts_once_for_several_calls_accuse_nobody(n_calls, tmp_path):
    """Their gradient is added up in bfloat16 in the run, and in float32 where each call casts them anew."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(out=tmp_path / "run", sdc_check="every=1"):
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                outs = [model(torch.randn(8, 16)) for _ in range(n_calls)]
                loss = sum(out.float().square().mean() for out in outs)
            loss.backward()
            optimizer.step()

    assert [f.title for f in diagnose(open_run(tmp_path / "run")).findings if f.code.startswith("HC34")] == []
