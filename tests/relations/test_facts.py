"""What an unchanged micro-batch tells of its samples, where nobody has said which dimension is theirs."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.detect.relation_rows import HOLDS
from hypocenter.diagnose.diagnosis import diagnose
from hypocenter.record.reader import open_run

N, LENGTH, WIDTH = 8, 6, 16


class Recurrent(nn.Module):
    """Places first inside, and given back samples first by `back`."""

    def __init__(self, back):
        super().__init__()
        self.tokens, self.rnn, self.head = nn.Embedding(20, WIDTH), nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.back = back

    def forward(self, ids):
        y, _ = self.rnn(self.tokens(ids.T))
        return self.head(self.back(y, *ids.shape).mean(1))


class PlacesFirst(nn.Module):
    """Is given them so, and gives one output a sample."""

    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])


def viewed(y, n, length):
    return y.view(n, length, -1)


def turned(y, *_):
    return y.transpose(0, 1)


def found(tmp_path, model, step):
    """Codes that two steps leave, and whether samples are told not to mix."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run"), relations="0-1", audit="never"):
        for _ in range(2):
            step(model).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = open_run(tmp_path / "run")
    said = [name for row in run.readings() if row.site == "relations" for name in row.names]
    codes = {f.code for f in diagnose(run).findings if f.severity != "note"}
    return codes, f"samples{HOLDS}" in said


@pytest.mark.parametrize(("back", "codes"), [(viewed, {"HC241"}), (turned, set())])
@pytest.mark.parametrize("cut", [lambda y: y[:N], lambda y: y.narrow(0, 0, N) % 3, lambda y: y[:N].view(-1)])
def test_labels_that_are_cut_out_of_a_table_after_the_call(tmp_path, back, codes, cut):
    torch.manual_seed(0)
    ids, labels = torch.randint(0, 20, (N, LENGTH)), torch.randint(0, 3, (1024,))

    told = found(tmp_path, Recurrent(back), lambda m: functional.cross_entropy(m(ids), cut(labels)))

    assert told == (codes, not codes)


@pytest.mark.parametrize("length", [LENGTH, N])
def test_places_first_with_labels_out_of_a_table(tmp_path, length):
    torch.manual_seed(0)
    x, labels = torch.randn(length, N, WIDTH), torch.randint(0, 3, (1024,))

    assert found(tmp_path, PlacesFirst(), lambda m: functional.cross_entropy(m(x), labels[:N]))[0] == set()
