"""A replay on one of several ranks never communicates: it is refused where it would have to."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from hypocenter.replay import alone
from hypocenter.replay.impossible import ReplayImpossible


@pytest.fixture
def two_ranks():
    """The first of two ranks whose collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Talks(nn.Module):
    def forward(self, x):
        dist.all_reduce(x)
        return x


@pytest.mark.usefixtures("two_ranks")
def test_a_collective_is_refused_by_its_name():
    with pytest.raises(ReplayImpossible, match=r"\(allreduce\)"), alone.NoCollectives():
        Talks()(torch.ones(2))


@pytest.mark.usefixtures("two_ranks")
def test_a_functional_collective_is_refused_too():
    from torch.distributed._functional_collectives import all_reduce

    with pytest.raises(ReplayImpossible, match="all_reduce"), alone.NoCollectives():
        all_reduce(torch.ones(2), "sum", dist.group.WORLD)


@pytest.mark.usefixtures("two_ranks")
def test_what_talks_to_nobody_goes_on():
    group = dist.new_group([0])

    with alone.NoCollectives():
        x = torch.ones(2) * 3
        dist.all_reduce(x, group=group)

    assert x.tolist() == [3.0, 3.0]


@pytest.mark.usefixtures("two_ranks")
def test_sharded_parameters_cannot_be_gathered():
    model = nn.Linear(2, 2)
    assert alone.why_not(model) == ""

    model.weight.ds_tensor = torch.zeros(2)

    assert "ZeRO stage 3" in alone.why_not(model)


def test_alone_everything_may_be_replayed():
    model = nn.Linear(2, 2)
    model.weight.ds_tensor = torch.zeros(2)

    assert alone.why_not(model) == ""
    assert alone.why_not(torch.add) == ""


@pytest.mark.usefixtures("two_ranks")
def test_a_data_parallel_wrapper_gives_its_module():
    inner = nn.Linear(2, 2)

    assert alone.callee(nn.parallel.DistributedDataParallel(inner)) is inner
    assert alone.callee(inner) is inner
    assert alone.callee(torch.add) is torch.add
