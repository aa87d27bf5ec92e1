"""`hypocenter spikes`: the steps that jumped, and a list of the samples to skip."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from recordings import record, run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import hypocenter
from hypocenter.diagnose.spike_list import Answer
from hypocenter.json_answer import published

BAD = 700  # a record of the data set


@pytest.fixture(scope="module")
def jumped(tmp_path_factory):
    torch.manual_seed(0)
    data = torch.randn(960, 16)
    data[BAD] *= 1000
    loader = DataLoader(TensorDataset(data), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(3))
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    out, steps = tmp_path_factory.mktemp("spikes") / "run", []
    with hypocenter.watch(model, out=out):
        for step, (x,) in enumerate(loader):
            steps += [step] * bool((x.abs() > 100).any())
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert steps[0] > 8
    return out, steps[0]


def test_a_step_that_jumped_is_listed_with_its_sample(jumped):
    out, step = jumped
    said = run("spikes", out)

    assert said.code == 1
    assert said.out.startswith("jumped: 1 step of 60; the origin of 1 is proven")
    (line,) = [line for line in said.out.splitlines() if "bad-sample" in line]
    assert line.split()[0] == str(step)
    assert line.split()[-1] == str(BAD)


def test_the_indices_of_samples_are_exported(jumped, tmp_path):
    said = run("spikes", jumped[0], "--export", tmp_path / "skip.txt")

    assert (tmp_path / "skip.txt").read_text() == f"{BAD}\n"
    assert "1 index written to" in said.err
    assert run("spikes", jumped[0], "--export", tmp_path / "skip.txt").code == 2
    assert run("spikes", jumped[0], "--export", tmp_path / "skip.txt", "--force").code == 1


def test_json_follows_its_schema(jumped):
    found = json.loads(run("spikes", jumped[0], "--json").out)

    jsonschema.validate(found, published(Answer))
    (spike,) = found["spikes"]
    assert (spike["step"], spike["dataset_indices"], spike["severity"]) == (jumped[1], [BAD], "warning")
    assert spike["value"] > 100 * spike["usual"]


def test_a_run_without_a_jump(tmp_path):
    said = run("spikes", record(tmp_path / "run", n_steps=20, fails=False))

    assert (said.code, said.out) == (0, "healthy: nothing jumped in 20 steps\n")
