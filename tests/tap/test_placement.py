"""How a parameter lies over the ranks, from what it is."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from hypocenter.tap.placement import Placements, placement_of_gradient


def parameter(**marks: Any) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(4, 4))
    for name, value in marks.items():
        setattr(made, name, value)
    return made


def placed(name: str, made: Any, *others: Any, wrappers: tuple[Any, ...] = ()) -> str:
    named = [(name, made), *((f"other.{i}", p) for i, p in enumerate(others))]
    return Placements(named, wrappers, []).of(name, made)


def shard(dim: int) -> Any:
    return SimpleNamespace(is_replicate=lambda: False, is_partial=lambda: False, is_shard=lambda: True, dim=dim)


REPLICATE: Any = SimpleNamespace(is_replicate=lambda: True, is_partial=lambda: False, is_shard=lambda: False)
PARTIAL: Any = SimpleNamespace(is_replicate=lambda: False, is_partial=lambda: True, is_shard=lambda: False)


@pytest.mark.parametrize(
    ("names", "placements", "expected"),
    [
        (("dp", "tp"), (REPLICATE, shard(0)), "dp=R tp=S(0)"),
        (("tp",), (REPLICATE,), "tp=R"),
        (("tp",), (PARTIAL,), "tp=P"),
        (("dp_replicate", "dp_shard"), (REPLICATE, shard(0)), "dp=S(0)"),  # HSDP
        (("dp_shard", "tp"), (shard(0), shard(1)), "dp=S(0) tp=S(1)"),
        (("depth", "tp"), (REPLICATE, REPLICATE), "tp=R"),
        (None, (shard(0),), "dp=S(0)"),  # FSDP2 on a mesh without names
        (None, (REPLICATE,), ""),
    ],
)
def test_of_dtensors(names: tuple[str, ...] | None, placements: tuple[Any, ...], expected: str) -> None:
    dtensor = SimpleNamespace(device_mesh=SimpleNamespace(mesh_dim_names=names), placements=placements)

    assert placed("a.weight", dtensor) == expected


@pytest.fixture
def of_two_ranks():
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("of_two_ranks")
def test_a_mesh_without_names_is_of_tensors_where_layers_are_cut_over_it() -> None:
    mesh, model = init_device_mesh("cpu", (2,)), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    parallelize_module(model[0], mesh, ColwiseParallel())
    copied = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
    model[1].weight = nn.Parameter(copied)
    named = list(model.named_parameters())

    placements = Placements(named, [], [model])
    found = {name: placements.of(name, p) for name, p in named}

    assert (found["0.weight"], found["1.weight"], found["2.weight"]) == ("tp=S(0)", "tp=R", "tp=R")
    assert placement_of_gradient(copied, found["1.weight"], is_reduced=True) == "tp=R"
    alone = Placements([named[2]], [], [model[1]])  # copies beside nothing that is cut: nobody knows over what
    assert alone.of("1.weight", model[1].weight) == ""


def test_plain_parameters_tell_nothing() -> None:
    assert placed("a.weight", parameter()) == ""


def test_megatron_marks() -> None:
    split = parameter(tensor_model_parallel=True, partition_dim=1)

    assert placed("a.weight", split) == "tp=S(1)"
    assert placed("norm.weight", parameter(), split) == "tp=R"
    assert placed("experts.0.weight", parameter(allreduce=False), split) == "dp=V tp=R"
    assert placed("embedding.weight", parameter(shared_embedding=True)) == "pp=R"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("moe.experts.0.weight", "dp=V"),
        ("moe.expert.weight", "dp=V"),
        ("moe.shared_experts.up", ""),
        ("expertise.w", ""),
    ],
)
def test_experts_by_name(name: str, expected: str) -> None:
    assert placed(name, parameter()) == expected


def test_what_ddp_synchronises() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    wrapper = SimpleNamespace(module=model, parameters_to_ignore=set())

    assert placed("experts.weight", model.weight, wrappers=(wrapper,)) == "dp=R"
    assert placed("bias", model.bias, wrappers=(wrapper,)) == ""
    wrapper.parameters_to_ignore = {"weight"}
    assert placed("weight", model.weight, wrappers=(wrapper,)) == ""


def test_shards_of_flat_parameters() -> None:
    assert placed("a.weight", parameter(ds_tensor=torch.zeros(2))) == "dp=S"
    assert placed("a.weight", parameter(_is_flat_param=True)) == "dp=S"


def test_of_gradients() -> None:
    assert placement_of_gradient(torch.zeros(2), "dp=R tp=S(0)", is_reduced=True) == "dp=R tp=S(0)"
    assert placement_of_gradient(torch.zeros(2), "dp=R tp=S(0)", is_reduced=False) == "dp=V tp=S(0)"
