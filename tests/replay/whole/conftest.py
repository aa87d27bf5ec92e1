"""A process group of two ranks in one process: the other rank's pieces are known beforehand."""

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


class Group:
    """A group of the user's."""

    group_name = "data"

    def size(self):
        return 2


class Done:
    def wait(self):
        return True


class OtherRank:
    """Stands for OwnGroups: what the second rank sends at each gathering is in `sends`, by number of the part."""

    def __init__(self, sends):
        self.sends = sends
        self.gathered = []
        self.says = None  # the number that it sends, if another one

    def twin(self, group):
        return self, "own"

    def allgather(self, outputs, inputs):
        (pieces,), (mine,) = outputs, inputs
        pieces[0].copy_(mine)
        if mine.dtype == torch.int64:  # first comes the number of the part
            self.gathered.append(int(mine[0]))
            pieces[1].copy_(mine)
            pieces[1][0] = mine[0] if self.says is None else self.says
        else:
            pieces[1].copy_(self.sends[self.gathered[-1]].view(torch.uint8))
        return Done()


@pytest.fixture
def group():
    return Group()


@pytest.fixture
def other_rank():
    return OtherRank


@pytest.fixture
def two_ranks():
    """The first of two ranks whose own collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        dist.destroy_process_group()
