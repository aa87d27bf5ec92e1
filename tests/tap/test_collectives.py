"""Calls of collectives are told once, whoever calls them, and the functions stay what they were."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import all_reduce as imported_before
from torch.distributed import isend as isend_imported_before

from hypocenter.tap import collectives
from hypocenter.tap.collectives import Call, CollectiveTap, Listener
from hypocenter.tap.names import NameMap


class Log(Listener):
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.events: list[str] = []

    def before(self, call: Call) -> None:
        call.wants_result = True
        self.calls.append(call)
        self.events.append(f"before {call.op}")

    def after(self, call: Call) -> None:
        self.events.append(f"after {call.op}")

    def done(self, call: Call) -> None:
        self.events.append(f"done {call.op}")

    def failed(self, call: Call, error: BaseException) -> None:
        self.events.append(f"failed {call.op}")


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    """One for all tests: torch 2.6 alone, without us, hangs now and then where a process makes and unmakes many."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def log(world: None) -> Iterator[Log]:
    log = Log()
    undo = CollectiveTap([log]).attach()
    yield log
    undo()


def test_a_call_says_what_it_is(log: Log) -> None:
    tensor = torch.ones(3)

    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    dist.all_reduce(tensor)

    first, second = log.calls
    assert (first.op, first.reduce, first.ranks, first.seq) == ("all_reduce", "max", (0,), 0)
    assert (second.reduce, second.seq) == ("sum", 1)
    assert first.inputs[0] is tensor
    assert first.outputs[0] is tensor
    assert log.events[:3] == ["before all_reduce", "after all_reduce", "done all_reduce"]


def test_a_name_imported_before_is_followed_and_keeps_its_identity(log: Log) -> None:
    imported_before(torch.ones(1))

    assert imported_before is dist.all_reduce
    assert [call.op for call in log.calls] == ["all_reduce"]
    assert dist.P2POp(isend_imported_before, torch.ones(1), group_peer=0).op is dist.isend
    assert "tensor" in inspect.signature(dist.isend).parameters


def test_an_asynchronous_result_is_told_after_the_wait(log: Log) -> None:
    work = dist.all_reduce(torch.ones(1), async_op=True)

    assert log.events == ["before all_reduce", "after all_reduce"]
    work.wait()
    assert log.events[-1] == "done all_reduce"
    work.wait()
    assert log.events.count("done all_reduce") == 1


def test_functional_collectives_are_seen(log: Log) -> None:
    from torch.distributed import _functional_collectives as functional

    result = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert "done all_reduce" not in log.events
    assert (result + 0).tolist() == [1.0, 1.0, 1.0]

    assert [(call.op, call.reduce) for call in log.calls] == [("all_reduce", "sum")]
    assert log.calls[0].outputs[0].tolist() == [1.0, 1.0, 1.0]
    assert log.events.count("done all_reduce") == 1


def test_a_collective_inside_another_counts_once(log: Log) -> None:
    dist.all_gather_object([None], {"a": 1})  # two all_gathers of its own, no object above them is told

    assert {call.op for call in log.calls} == {"all_gather"}
    log.calls.clear()
    output = torch.empty(2)
    dist.all_gather_into_tensor(output, torch.ones(2))
    assert len(log.calls) == 1


def test_what_a_listener_does_is_not_told_of(world: None) -> None:
    class Nosy(Log):
        def before(self, call: Call) -> None:
            super().before(call)
            dist.all_reduce(torch.ones(1))

    log = Nosy()
    undo = CollectiveTap([log]).attach()
    dist.all_reduce(torch.ones(1))
    undo()

    assert len(log.calls) == 1


def test_a_failing_listener_is_taken_out_and_said_once(world: None) -> None:
    class Broken(Listener):
        def before(self, call: Call) -> None:
            raise RuntimeError("on purpose")

    said: list[str] = []
    undo = CollectiveTap([Broken()], fail=said.append).attach()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)
    undo()

    assert len(said) == 1
    assert "on purpose" in said[0]


def test_an_error_of_the_collective_is_told_and_raised(log: Log) -> None:
    with pytest.raises(Exception):  # noqa: B017
        dist.all_reduce("nothing")  # type: ignore[arg-type]
    with pytest.raises(Exception):  # noqa: B017
        dist.all_gather([torch.empty(3)], torch.ones(2))

    assert "failed all_gather" in log.events


def test_undo_leaves_everything_as_it_was() -> None:
    from torch.distributed import _functional_collectives as functional
    from torch.distributed import distributed_c10d as c10d

    def state() -> list[Any]:
        inner = [f.__closure__[0].cell_contents for f in (c10d.all_reduce, c10d.send) if f.__closure__]  # type: ignore[attr-defined]
        return [*inner, c10d.isend.__code__, c10d.isend.__dict__.copy(), functional.all_reduce, dist.Work.wait]

    before = state()
    tap = CollectiveTap([Log()])
    undo = tap.attach()
    changed = state()
    undo()

    assert changed != before
    assert state() == before
    assert not hasattr(c10d, "_hypocenter_isend")


def test_two_who_listen_share_one_tap_and_are_told_the_site(world: None) -> None:
    class Reducing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dist.all_reduce(x)
            return x

    class Sites(Log):
        def before(self, call: Call) -> None:
            super().before(call)
            self.events.append(call.site)

    model, names = torch.nn.Sequential(torch.nn.Identity(), Reducing()), NameMap()
    names.add_root(model)
    first, second = Sites(), Log()
    before = dist.all_reduce.__closure__[0].cell_contents  # type: ignore[attr-defined]
    undos = [collectives.listen(listener, names=names, fail=print) for listener in (first, second)]
    model(torch.ones(1))
    dist.all_reduce(torch.ones(1))
    for undo in undos:
        undo()

    assert [event for event in first.events if " " not in event] == ["1", ""]
    assert [call.seq for call in second.calls] == [0, 1]
    assert dist.all_reduce.__closure__[0].cell_contents is before  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_async", [False, True])
def test_coalesced_results_are_told_when_they_are_there(log: Log, is_async: bool) -> None:
    from torch.distributed.distributed_c10d import _coalescing_manager

    tensors = [torch.ones(2), torch.ones(3)]
    with _coalescing_manager(None, async_ops=is_async) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, async_op=is_async)
        assert "done all_reduce" not in log.events
    if is_async:
        assert "done all_reduce" not in log.events
        manager.wait()

    assert log.events.count("done all_reduce") == 2


def test_compiled_code_is_left_alone(log: Log) -> None:
    @torch.compile(fullgraph=True, backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x + 1

    assert step(torch.ones(2)).tolist() == [2.0, 2.0]
    assert log.calls == []
