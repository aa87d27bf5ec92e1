"""`hypocenter relations`: each relation with its answer, the notes, and what it is in JSON."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from recordings import run
from torch import nn
from torch.nn import functional

import hypocenter
from hypocenter.diagnose.relation_list import Answer
from hypocenter.json_answer import published


class Net(nn.Module):
    def __init__(self, *, mixes):
        super().__init__()
        self.first, self.head, self.mixes = nn.Linear(6, 8), nn.Linear(8, 3), mixes

    def forward(self, x, extra):
        h = self.first(x).relu()
        return self.head(h - h.mean(0) if self.mixes else h)


def recorded(out, *, mixes=False, relations="1"):
    torch.manual_seed(0)
    model = Net(mixes=mixes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with hypocenter.watch(model, optimizer, out=str(out), relations=relations):
        for _ in range(2):
            x, y = torch.randn(8, 6), torch.arange(8) % 3
            functional.cross_entropy(model(x, extra=torch.arange(8)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def test_what_holds_what_was_not_asked_and_notes(tmp_path):
    said = run("relations", recorded(tmp_path / "run"))

    assert said.code == 0
    assert said.out.startswith("healthy: ")
    assert any(line.split()[:2] == ["samples", "holds"] for line in said.out.splitlines())
    assert "there is no padding under a mask" in said.out
    assert "note: the model is given extra, and no operation reads it" in said.out


def test_what_does_not_hold_comes_first_with_its_module(tmp_path):
    said = run("relations", recorded(tmp_path / "run", mixes=True))

    assert said.code == 1
    assert said.out.startswith("broken: 1 relation of")
    assert said.out.splitlines()[2].split()[:3] == ["samples", "broken", "HC241"]


@pytest.mark.parametrize(("options", "status"), [({"mixes": True}, "broken"), ({"relations": "never"}, "not-asked")])
def test_json_follows_its_schema(tmp_path, options, status):
    answer = json.loads(run("relations", recorded(tmp_path / "run", **options), "--json").out)

    jsonschema.validate(answer, published(Answer))
    assert answer["status"] == status
