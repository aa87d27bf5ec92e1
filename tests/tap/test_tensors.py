"""tap/tensors.py: the values of a named module on disk, forward and backward."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from hypocenter.config import Config
from hypocenter.tap.keeper import file_name
from hypocenter.tap.modules import ModuleTap
from hypocenter.tap.names import NameMap
from hypocenter.tap.tensors import TensorKeeper


@pytest.fixture
def watched(reducer, clock, warnings_given, tmp_path):
    """A function model -> (tap, keeper) with everything undone afterwards."""
    undos = []

    def build(model: nn.Module, budget_bytes: int = 1 << 20, **options: object):
        names = NameMap()
        names.add_root(model)
        tap = ModuleTap(names, reducer, clock, Config(**options), warnings_given.append)
        tap.keeper = TensorKeeper(tmp_path, budget_bytes=budget_bytes, warn=warnings_given.append)
        undos.extend([tap.attach(), names.close])
        tap.enabled = True
        return tap, tap.keeper

    yield build
    for undo in undos:
        undo()


def test_inputs_outputs_gradients_and_parameters_of_a_named_module_are_saved(watched, clock, tmp_path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    tap, keeper = watched(model, sites=("1",))
    xs = [torch.randn(2, 3), torch.randn(2, 3)]

    for x in xs:
        model(x).square().sum().backward()
        clock.end_microbatch()
    written = keeper.flush(12)
    tap.enabled = False

    folder = tmp_path / "tensors" / "step-000012"
    assert written == [folder / "mb-0" / "1.safetensors", folder / "mb-1" / "1.safetensors"]
    assert not list(folder.rglob("*.part"))
    first, last = (load_file(path) for path in written)
    assert set(first) == {"in[0]", "out[0]", "grad_in[0]", "grad_out[0]"}
    assert set(last) == {*first, "weight", "weight.grad", "bias", "bias.grad"}
    hidden = model[0](xs[0])
    assert torch.equal(first["in[0]"], hidden)
    assert torch.equal(first["out[0]"], model[1](hidden))
    assert torch.equal(first["grad_out[0]"], 2 * model[1](hidden))
    assert torch.equal(first["grad_in[0]"], 2 * model[1](hidden) @ model[1].weight)
    assert torch.equal(last["weight.grad"], model[1].weight.grad)


class Odd(nn.Module):
    def forward(self, *values: object) -> object:
        return values


def test_odd_values_are_saved_as_what_they_hold(watched, warnings_given) -> None:
    model = Odd()
    _, keeper = watched(model)
    values = [
        torch.ones(2, dtype=torch.bool),
        torch.ones(2, dtype=torch.complex64),
        torch.ones(0, 3),
        torch.eye(2).to_sparse(),
        torch.ones(3).to(torch.float8_e4m3fn),
        torch.ones(1, 3).expand(2, 3).t(),
        torch.tensor(1.0),
    ]

    model(*values)
    saved = load_file(keeper.flush(0)[0])

    assert saved["in[0]"].dtype == torch.bool
    assert saved["in[1]"].shape == (2, 2)
    assert torch.equal(saved["in[3]"], torch.eye(2))
    assert saved["in[4]"].dtype == torch.float8_e4m3fn
    assert saved["out[5]"].shape == (3, 2)
    assert warnings_given == []


def test_a_meta_tensor_warns_once_and_the_rest_is_saved(watched, warnings_given) -> None:
    model = Odd()
    _, keeper = watched(model)

    model(torch.ones(2, device="meta"), torch.ones(2))
    saved = load_file(keeper.flush(0)[0])

    assert set(saved) == {"in[1]", "out[1]"}
    assert len(warnings_given) == 1


def test_the_budget_is_kept_and_said(watched, warnings_given, tmp_path) -> None:
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
    _, keeper = watched(model, budget_bytes=3000)

    for step in range(3):
        model(torch.ones(1, 64)).sum().backward()
        keeper.flush(step)

    values = [t for path in tmp_path.rglob("*.safetensors") for t in load_file(path).values()]
    assert 0 < sum(t.nbytes for t in values) <= 3000
    assert len(warnings_given) == 1


def test_a_directory_that_cannot_be_written_warns_once(watched, warnings_given, tmp_path) -> None:
    (tmp_path / "tensors").write_text("in the way")
    model = nn.Linear(2, 2)
    _, keeper = watched(model)

    for step in range(2):
        model(torch.ones(1, 2)).sum().backward()
        assert keeper.flush(step) == []

    assert len(warnings_given) == 1


def test_a_second_call_has_a_number_and_file_names_are_safe(watched) -> None:
    model = nn.Linear(2, 2)
    _, keeper = watched(model)

    model(model(torch.ones(1, 2))).sum().backward()
    (path,) = keeper.flush(0)

    assert path.name == "(root).safetensors"
    assert {"in[0]", "in[0]#1", "grad_out[0]#1"} < set(load_file(path))
    assert file_name("a/b: c") == "a_b__c"
