"""A process that is alone: its micro-batches done again, on schedule and on suspicion."""

import contextlib
import sys
from pathlib import Path

import torch
from torch import nn

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
        x = nn.functional.dropout(torch.tanh(self.first(x)), 0.2)
        return self.second(x) * (1.0 + self.n_calls)


class Counting(Net):
    counts = True


def train(out, *, make=Net, fault=None, bad_step=None, poison=None, **options):
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

        assert found.status == "healthy", (name, found.findings)
