"""What a collective writes in loss code is a value from outside: a replay reads it and does not ask for it again."""

import operator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from hypocenter.tap.names import NameMap
from hypocenter.tap.received import Received
from hypocenter.tap.roots import RootTap
from hypocenter.tap.tape import COPIED_BYTES, Tape


class Watched:
    """A tape with its hooks, told of collectives of a group of one rank."""

    def __init__(self):
        self.tape, self.failures = Tape(1 << 30), []
        self.roots = RootTap(
            self.tape, on_root=lambda m: None, on_begin=lambda training: None, fail=self.failures.append
        )
        self.received = Received(self.roots, NameMap(), self.failures.append)

    def __enter__(self):
        self._undos = [self.roots.attach(), self.received.attach()]
        return self

    def __exit__(self, *error):
        for undo in reversed(self._undos):
            undo()
        assert self.failures == []

    def close(self, loss):
        self.roots.suspend()
        return self.tape.close_microbatch(0, 0, [loss], [None])

    def functions(self, microbatch):
        """The names of what a replay of this micro-batch does, beside module calls."""
        return [getattr(event.function, "__name__", "") for _, event in self.tape.slice(microbatch)]

    def outside(self, microbatch):
        """All values from outside that a replay of this micro-batch reads in loss code, but parameters."""
        events = [event for _, event in self.tape.slice(microbatch) if event.module is None]
        return [each.tensor for event in events for each in event.externals]


@pytest.fixture(autouse=True)
def group(tmp_path: Path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_gather_gives_is_read_and_its_room_is_not_made_again(is_async):
    model = nn.Linear(4, 3)

    with Watched() as watched:
        y = model(torch.ones(2, 4))
        room = [torch.full_like(y, 1e30)]
        work = dist.all_gather(room, y.detach(), async_op=is_async)
        if work is not None:
            work.wait()
        microbatch = watched.close((y @ torch.cat(room).T).sum())

        assert microbatch.why_not == watched.tape.mutated(watched.tape.slice(microbatch)) == ""
        assert "full_like" not in watched.functions(microbatch)
        assert [torch.equal(value, y) for value in watched.outside(microbatch)] == [True]


@pytest.mark.parametrize(
    "gather", [lambda room, y: dist.all_gather(list(room.split(2)), y), dist.all_gather_into_tensor]
)
def test_room_is_known_by_its_memory(gather):
    model = nn.Linear(4, 3)

    with Watched() as watched:
        y = model(torch.ones(2, 4))
        room = y.new_full((2, 3), 1e30)
        first = room[0]
        gather(room, y.detach())
        microbatch = watched.close((y * room + first).sum())

        assert [torch.equal(*pair) for pair in zip(watched.outside(microbatch), (y, y[0]), strict=True)] == [True] * 2


@pytest.mark.parametrize("n", [2, COPIED_BYTES // 8])
def test_who_has_read_before_keeps_what_it_read(n):
    """Of what is too large to be copied a replay is refused: gloo's all-reduce moves no version."""
    model = nn.Linear(4, 3)

    with Watched() as watched:
        weights = torch.ones(n, 3)
        before = (model(torch.ones(n, 4)) * weights).sum()
        dist.all_reduce(weights)
        weights.data.mul_(2)  # as another rank would have changed it
        microbatch = watched.close(before)

        why = watched.tape.mutated(watched.tape.slice(microbatch))
        if n == 2:
            assert why == ""
            assert [torch.equal(value, torch.ones(n, 3)) for value in watched.outside(microbatch)] == [True]
        else:
            assert "was changed in place after it was used" in why


def test_a_loss_that_is_averaged_for_a_log_is_replayed_as_it_was():
    model = nn.Linear(4, 3)

    with Watched() as watched:
        loss = model(torch.ones(2, 4)).square().sum()
        was = loss.item()
        shown = loss.detach()
        dist.all_reduce(shown)
        shown.data.mul_(3)  # as another rank would have changed it
        microbatch = watched.close(loss)

        assert microbatch.why_not == ""
        assert [value.item() for value in microbatch.values] == [was]


def test_what_goes_on_from_a_sum_over_ranks_with_its_gradient_is_not_replayed():
    model = nn.Linear(4, 3)

    with Watched() as watched:
        loss = model(torch.ones(2, 4)).square().sum()
        with torch.no_grad():
            dist.all_reduce(loss)
        microbatch = watched.close(loss / 2)

        assert "what another rank sent" in microbatch.why_not


def test_inside_a_module_nothing_is_taken_out():
    class Averaging(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            mean = y.detach().mean(0)
            dist.all_reduce(mean)
            return y - mean

    model = Averaging(4, 3)

    with Watched() as watched:
        x = torch.ones(2, 4) * 3
        microbatch = watched.close(operator.add(model(x).sum(), 0.0))

        assert microbatch.why_not == ""
        assert len(watched.tape.slice(microbatch)) == 3
