"""Torch refuses to swap tensors that somebody refers to weakly: that we do is no reason."""

import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import hypocenter

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))

from program_text import diagnosed

OFFLOADED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with torch.device("meta"):
    model = nn.Sequential(nn.Linear(6, 6), nn.RMSNorm(6), nn.Linear(6, 1))
fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
loss = nn.functional.mse_loss(nn.Linear(6, 1)(torch.randn(4, 6)), torch.randn(4, 1))  # before: a tape is under way
model.to_empty(device="cpu")
with torch.no_grad():
    for parameter in model.parameters(): parameter.normal_()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    loss = (model(torch.randn(4, 6)) - torch.randn(4, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.double().float()
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def swapping():
    """`module.to` swaps."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


def train(model, optimizer):
    model(torch.randn(4, 6, dtype=model[0].weight.dtype)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("level", ["sentinel", "modules", "ops"])
def test_a_model_that_is_watched_can_be_converted(tmp_path, level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, level=level, out=str(tmp_path / "run")):
        train(model, optimizer)
        model.double()
        train(model, optimizer)
        model.float()
        train(model, optimizer)

    assert model[0].weight is weight
    assert weight.dtype is torch.float32


def test_references_of_others_are_a_reason_as_ever(tmp_path):
    model = nn.Sequential(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with hypocenter.watch(model, optimizer, out=str(tmp_path / "run")):
        train(model, optimizer)
        theirs = weakref.ref(model[0].weight)
        with pytest.raises(RuntimeError, match="Couldn't swap Linear"):
            model.double()
        assert theirs() is model[0].weight


def test_a_sharded_model_can_be_made_and_moved_while_it_is_watched(tmp_path):
    found = diagnosed(OFFLOADED, tmp_path)

    assert [f for f in found["findings"] if f["severity"] == "error"] == []
    assert found["status"] != "unhealthy"
