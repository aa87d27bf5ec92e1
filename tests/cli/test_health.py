"""`hypocenter health`: the table, its words, its formats."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from recordings import record, run
from torch import nn

import hypocenter
from hypocenter.diagnose.health import Answer, answer, measures
from hypocenter.diagnose.recorded_health import Recorded
from hypocenter.json_answer import published
from hypocenter.record.reader import open_run
from hypocenter.report.health_screen import render
from hypocenter.report.screen import Screen


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(12)))
    with torch.no_grad():
        for i in (2, 10):
            model[i][0].bias.fill_(-100.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    out = tmp_path_factory.mktemp("health") / "run"
    with hypocenter.watch(model, out=out, health="every=2"):
        for _ in range(8):
            model(torch.randn(64, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def test_what_is_out_of_range_comes_first(dead):
    said = run("health", dead)

    assert said.code == 0
    lines = said.out.splitlines()
    assert lines[0].startswith("out of range: ")
    assert "dead-units 2.1: 8 of 8 units of relu never on in 4 looks" in said.out
    head = next(i for i, line in enumerate(lines) if line.startswith("layer"))
    table = [line.split() for line in lines[head + 1 : head + 14] if line]
    assert [row[0] for row in table[:11]] == [str(i) for i in range(11)]  # nothing reaches those before a dead layer
    assert [row[0] for row in table if row[1:3] == ["!", "1"]] == ["2", "10"]
    assert {row[0] for row in table[11:]} == {"(model)", "11"}
    assert "massive-activations (not recorded; hypocenter run --level modules records it)" in " ".join(said.out.split())
    assert "next: hypocenter explain dead-units" in said.err


def test_all_formats_have_the_answer(dead):
    found = json.loads(run("health", dead, "--json").out)

    jsonschema.validate(found, published(Answer))
    assert found["values"][0]["status"] == "out-of-range"
    sentence = found["sentence"]
    for name in ("html", "markdown", "github"):
        assert sentence in run("health", dead, "--format", name).out
    notices = run("health", dead, "--format", "github").out
    assert "::error" not in notices


def test_a_narrow_screen_has_the_columns_below_each_other(dead):
    recording = open_run(dead)
    lines = render(answer("run", Recorded(recording)), Screen(width=30)).splitlines()

    heads = [line for line in lines if line.startswith("layer")]
    assert len(heads) > 1
    assert max(map(len, heads)) <= 30


def test_nothing_to_measure_is_not_healthy(tmp_path):
    said = run("health", record(tmp_path / "run", n_steps=8, fails=False))

    assert said.code == 5
    assert said.out.startswith("cannot tell: nothing of the run's health was recorded")
    assert run("health", tmp_path / "none").code == 4


@pytest.mark.parametrize("name", [entry.name for entry in measures()])
def test_each_measure_is_explained(name):
    said = run("explain", name)

    assert said.code == 0
    assert said.out.startswith(f"{name} (measure): ")


def test_the_option_is_a_schedule():
    said = run("run", "--health", "sometimes", "train.py")

    assert said.code == 2
    assert "sometimes" in said.err
