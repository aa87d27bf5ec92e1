"""From two recordings: a fault too small to be seen from end to end in bfloat16 is still its module's own."""

from __future__ import annotations

import json

import jsonschema
import pytest
import torch
from six_layers import build, record
from torch import nn

import hypocenter
from hypocenter.cli.entry import main
from hypocenter.compare.engine import compare_runs
from hypocenter.compare.isolation.isolate import isolate
from hypocenter.compare.isolation.isolated import Isolation
from hypocenter.compare.judged_steps import Options
from hypocenter.errors import NoRecordingError
from hypocenter.json_answer import published
from hypocenter.record.reader import open_run


@pytest.fixture(scope="module")
def halves(tmp_path_factory):
    """A good candidate: sums in another order."""
    return record(tmp_path_factory.mktemp("halves") / "run", build(halves=True))


def recorded_with_a_fault(out, percent):
    model = build(halves=True)
    model.blocks[2].proj.scale = 1.0 + percent / 100
    return record(out, model)


@pytest.mark.slow
@pytest.mark.parametrize("percent", [2, 5])
def test_names_the_layer_that_a_comparison_from_end_to_end_does_not(good, halves, tmp_path, percent):
    bad = recorded_with_a_fault(tmp_path / "bad", percent)

    from_end_to_end = compare_runs(open_run(good), open_run(bad))
    found = isolate(open_run(good), open_run(bad))

    assert from_end_to_end.status == "cannot-tell"
    assert found.status == "diverged"
    assert [one.site for one in found.modules if one.innermost] == ["blocks.2.proj"]
    assert found.modules[0].error == pytest.approx(percent / 100, rel=0.1)
    assert "computes something else" in found.modules[0].why


def test_nobody_is_accused_of_another_order_of_sums(good, halves):
    found = isolate(open_run(good), open_run(halves))

    assert found.status == "cannot-tell"  # of blocks whose inputs differ nobody can say it
    assert not [one for one in found.modules if one.verdict == "own"]
    assert {one.kind for one in found.modules if one.verdict == "cannot-tell"} == {"Block"}


def test_equal_runs_are_the_same(good, tmp_path):
    again = record(tmp_path / "again", build())

    found = isolate(open_run(good), open_run(again))

    assert found.status == "same"
    assert len(found.modules) == 52


def test_attributes_and_weights_are_told_from_code(good, tmp_path):
    model = build(halves=True)
    model.blocks[3].ln2.eps = 0.05
    with torch.no_grad():
        model.blocks[4].up.weight.mul_(1.05)
    bad = record(tmp_path / "bad", model)

    found = isolate(open_run(good), open_run(bad))

    guilty = {one.site: one.why for one in found.modules if one.innermost}
    assert guilty == dict.fromkeys(["blocks.3.ln2", "blocks.4.up"], "its weights or attributes differ")


def test_a_class_that_does_what_its_name_does_not_say_is_not_judged(tmp_path):
    class RMSNorm(nn.Module):
        """Of this name, and takes the largest value instead."""

        def __init__(self):
            super().__init__()
            self.weight, self.eps = nn.Parameter(torch.ones(8)), 1e-6

        def forward(self, x):
            return x / x.abs().amax(-1, keepdim=True) * self.weight

    def run(out, shift):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), RMSNorm())
        with torch.no_grad():
            model[0].bias += shift
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with hypocenter.watch(model, optimizer, out=str(out), level="tensors", replay=False):
            model(torch.randn(4, 8, generator=torch.Generator().manual_seed(1))).square().sum().backward()
            optimizer.step()
        return open_run(out)

    found = isolate(run(tmp_path / "a", 0.0), run(tmp_path / "b", 0.5))

    verdicts = {one.site: one.verdict for one in found.modules}
    assert verdicts["0"] == "own"
    assert verdicts["1"] == "cannot-tell"


def test_the_command(good, tmp_path, capsys):
    bad = recorded_with_a_fault(tmp_path / "bad", 5)

    code = main(["isolate", str(good), str(bad), "--rows", "3"])
    words = capsys.readouterr()
    main(["isolate", str(good), str(bad), "--json", "--site", "blocks.2.*"])
    answer = json.loads(capsys.readouterr().out)

    assert code == 1
    assert words.out.startswith("diverged: blocks.2.proj is off by 0.05 by itself at out[0]")
    assert "--site blocks.2.proj --values" in words.err
    jsonschema.validate(answer, published(Isolation))
    assert answer["modules"][0]["site"] == "blocks.2.proj"
    assert {one["site"].rpartition(".")[0] for one in answer["modules"]} == {"blocks.2"}


def test_says_what_to_record(good, tmp_path, capsys):
    without = record(tmp_path / "modules", build(), level="modules")

    with pytest.raises(NoRecordingError):
        isolate(open_run(good), open_run(without), options=Options())

    assert main(["isolate", str(good), str(without)]) == 4
    assert "--level tensors" in capsys.readouterr().err
