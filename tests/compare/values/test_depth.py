"""Two recordings of level tensors: what the values say, and what a diff makes of it."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from torch import nn

import hypocenter
from hypocenter.cli.entry import main
from hypocenter.compare.comparison import Spot
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.judged_steps import Options
from hypocenter.compare.values.measured import Values
from hypocenter.compare.values.recorded import RecordedValues
from hypocenter.json_answer import published
from hypocenter.record.reader import open_run


def record(out, *, level="tensors", scale=1.0, sketch=False):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward = model[2].forward
    if scale != 1.0:
        model[2].forward = lambda x: forward(x) * scale
    settings = {"level": level, "sketch": sketch, "param_schedule": "every=1", "replay": False}
    with hypocenter.watch(model, optimizer, out=str(out), **settings):
        for _ in range(2):
            for _ in range(2):
                ids = torch.randint(0, 16, (2, 5))
                nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    return record(folder / "good"), record(folder / "bad", scale=1.001)


def test_values_are_found_by_spot(pair):
    values = RecordedValues(open_run(pair[0]))

    assert values.batches() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert values.find(Spot(phase="forward", site="2", port="out[0]"), 1, 0).shape == (2, 5, 8)
    assert values.find(Spot(phase="param", site="2.weight", port="value"), 0, 1).shape == (8, 8)
    assert values.find(Spot(phase="grad", site="2.weight", port="grad"), 0, 1).shape == (8, 8)
    assert values.find(Spot(phase="forward", site="nobody", port="out[0]"), 1, 0) is None
    assert values.find(Spot(phase="loss", site="loss", port="value"), 0, 0) is None


def test_diff_uses_values_where_both_sides_hold_them(pair):
    found = compare_runs(open_run(pair[0]), open_run(pair[1]))

    assert found.depth == "tensor"
    assert found.status == "diverged"
    assert (found.first.site, found.first.port) == ("2", "out[0]")
    distance = found.first.row.distance
    assert distance.depth == "tensor"
    assert distance.low == distance.high == distance.relative == pytest.approx(1e-3, rel=1e-3)
    assert distance.scale == pytest.approx(1.001, rel=1e-5)
    assert distance.details["five_thousandths"] == 1.0


def test_values_can_be_left_out(pair):
    found = compare_runs(open_run(pair[0]), open_run(pair[1]), options=Options(use_values=False))

    assert found.depth == "summary"


def test_noise_is_measured_by_values_too(pair, tmp_path):
    again = record(tmp_path / "again", scale=1.002)

    found = compare_runs(open_run(pair[0]), open_run(pair[1]), options=Options(noise=[open_run(again)]))

    assert found.status == "same"
    assert found.floor_source == "repeats"


def test_bounds_are_no_noise_for_values(pair, tmp_path):
    """A repeat without values gives lower bounds only: nothing may be judged by them."""
    again = record(tmp_path / "again", level="modules", scale=1.002)

    found = compare_runs(open_run(pair[0]), open_run(pair[1]), options=Options(noise=[open_run(again)]))

    row = next(row for row in found.rows if row.pair.baseline[0] == Spot(phase="forward", site="2", port="out[0]"))
    assert row.floor.source == "assumed"


def test_a_broken_file_is_told_of_and_the_rest_is_compared(pair, tmp_path):
    broken = record(tmp_path / "broken", scale=1.001)
    next(broken.glob("rank-*/tensors/step-000000/mb-0/2.safetensors")).write_bytes(b"\xff" * 100)

    found = compare_runs(open_run(pair[0]), open_run(broken))

    assert found.status == "diverged"
    assert any("2.safetensors" in note for note in found.notes)


def test_values_as_a_table_and_as_json(pair, capsys):
    code = main(["diff", str(pair[0]), str(pair[1]), "--site", "2*", "--steps", "0", "--values"])
    table = capsys.readouterr().out
    main(["diff", str(pair[0]), str(pair[1]), "--site", "2*", "--steps", "0", "--values", "--json"])
    answer = json.loads(capsys.readouterr().out)

    jsonschema.validate(answer, published(Values))
    assert code == 1
    assert "2 out[0]" in table
    assert "farthest apart" in table
    line = next(v for v in answer["values"] if v["baseline"][0]["port"] == "out[0]" and v["microbatch"] == 0)
    assert line["relative"] == pytest.approx(1e-3, rel=1e-3)
    assert line["worst"][0]["index"]
    assert sum(line["ulp_histogram"].values()) == line["n"] == 80
