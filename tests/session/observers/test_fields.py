"""Data faults of real loaders: said at their step; healthy ones are silent."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import hypocenter
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

AT = 45
torch.manual_seed(0)
X = torch.randn(2400, 16)
Y = (X @ torch.randn(16, 10)).argmax(1)


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


LOADERS = {
    "shuffled": lambda: DataLoader(TensorDataset(X, Y), batch_size=32, shuffle=True),
    "in order": lambda: DataLoader(TensorDataset(X, Y), batch_size=32),
    "stream": lambda: DataLoader(Stream(), batch_size=32),
    "in memory": lambda: [(X[rows], Y[rows]) for rows in torch.randperm(len(X)).split(32)],
}
FAULTS = {
    "the batch before": ("HC411", lambda x, y, before: before),
    "bytes": ("HC412", lambda x, y, before: (x * 255, y)),
    "not centred": ("HC412", lambda x, y, before: (x + 5, y)),
    "empty": ("HC412", lambda x, y, before: (torch.zeros_like(x), y)),
    "one label": ("HC412", lambda x, y, before: (x, torch.full_like(y, 3))),
    "rows copied": ("HC411", lambda x, y, before: (x[HALVES[: len(x)]], y[HALVES[: len(x)]])),
    "rounded": ("HC412", lambda x, y, before: ((x * 4).round() / 4, y)),
}
HALVES = torch.arange(32) % 16


def train(folder, loader, fault=lambda x, y, before: (x, y), *, at=AT, net=None, n_epochs=2):
    torch.manual_seed(1)
    net = net or nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with hypocenter.watch(out=folder, audit="never"):
        step, before = 0, (X[:32], Y[:32])
        for _ in range(n_epochs):
            for x, y in loader():
                x, y = before = fault(x, y, before) if step == at else (x, y)
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
                step += 1
    return [f for f in diagnose(open_run(folder)).findings if f.code.startswith("HC41")]


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_a_fault_is_said_at_its_step_and_nothing_else(loader, tmp_path):
    for number, (code, fault) in enumerate(FAULTS.values()):  # the first one's second epoch is healthy again
        (finding,) = train(tmp_path / f"{number}", LOADERS[loader], fault, n_epochs=1 if number else 2)

        assert (finding.code, finding.step) == (code, AT)
    assert train(tmp_path / "healthy", LOADERS[loader]) == []


def test_labels_apart_from_their_inputs_are_told_once_samples_came_before(tmp_path):
    (finding,) = train(tmp_path, LOADERS["shuffled"], lambda x, y, before: (x, y.roll(3)), at=AT + 75)

    assert (finding.code, finding.severity, finding.port, finding.step) == ("HC413", "warning", "loss[0]", AT + 75)


class EachReadsAll(IterableDataset):
    def __iter__(self):
        yield from zip(X[:320], Y[:320], strict=True)


@pytest.mark.night
def test_workers_that_each_read_the_whole_stream_are_told_from_the_start(tmp_path):
    (finding,) = train(tmp_path / "same", lambda: DataLoader(EachReadsAll(), batch_size=32, num_workers=2))

    assert (finding.code, finding.severity, finding.step) == ("HC411", "warning", 1)
    assert "each of 2 workers" in finding.title
    assert train(tmp_path / "alone", lambda: DataLoader(EachReadsAll(), batch_size=32, num_workers=1)) == []


def test_masks_of_minus_infinity_are_values_like_others(tmp_path):
    mask = torch.where(torch.rand(41, 32, 16) < 0.5, -torch.inf, 0.0)
    again = iter([*range(40), 39])

    train(tmp_path, lambda: [(X[:32] + mask[number], Y[:32]) for number in again], net=Masked())

    (finding,) = [f for f in diagnose(open_run(tmp_path)).findings if f.code == "HC411"]
    assert finding.step == 40


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 10)

    def forward(self, x):
        return self.last(x.softmax(-1))
