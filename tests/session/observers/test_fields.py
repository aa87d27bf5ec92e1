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
}


def train(folder, loader, fault=lambda x, y, before: (x, y)):
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with hypocenter.watch(out=folder):
        step, before = 0, (X[:32], Y[:32])
        for _ in range(2):
            for x, y in loader():
                x, y = before = fault(x, y, before) if step == AT else (x, y)
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
                step += 1
    return [f for f in diagnose(open_run(folder)).findings if f.code.startswith("HC41")]


@pytest.mark.parametrize("loader", LOADERS)
def test_a_fault_is_said_at_its_step_and_nothing_else(loader, tmp_path):
    for number, (code, fault) in enumerate(FAULTS.values()):
        (finding,) = train(tmp_path / f"{number}", LOADERS[loader], fault)

        assert (finding.code, finding.step) == (code, AT)
    assert train(tmp_path / "healthy", LOADERS[loader]) == []
