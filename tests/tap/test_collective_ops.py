"""What collectives send and bring, read off their operators."""

import pytest
import torch
import torch.distributed._functional_collectives
from torch.testing._internal.distributed.fake_pg import FakeStore

from hypocenter.tap.collective_ops import is_collective, is_wrapped, operands, result_of
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer

C10D, FUNCTIONAL = torch.ops.c10d, torch.ops._c10d_functional


@pytest.fixture
def two_ranks():
    """The first of two ranks whose collectives do nothing."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def test_what_waits_or_sends_nothing_is_no_collective():
    assert is_collective(C10D.allreduce_.default)
    assert is_collective(FUNCTIONAL.all_reduce.default)
    assert not is_collective(FUNCTIONAL.wait_tensor.default)
    assert not is_collective(torch.ops.aten.add.Tensor)


def test_a_mode_steps_aside_for_what_hides_collectives():
    from torch.distributed.tensor import DTensor

    assert is_wrapped((torch.Tensor, DTensor))
    assert not is_wrapped((torch.Tensor, torch.nn.Parameter))


@pytest.mark.parametrize(
    ("func", "args", "sent", "came"),
    [
        (C10D.allreduce_.default, (["a"], "group"), "a", "a"),
        (C10D._allgather_base_.default, ("out", "in", "group"), "in", "out"),
        (C10D.allgather_.default, ([["x", "y"]], ["in"], "group"), "in", "xy"),
        (C10D.send.default, (["a"], "group"), "a", ""),
        (C10D.recv_.default, (["a"], "group"), "", "a"),
        (C10D.barrier.default, ("a", "group"), "", ""),
    ],
)
def test_both_ends_of_a_collective(func, args, sent, came):
    tensors = {}

    def made(value):
        if isinstance(value, list):
            return [made(item) for item in value]
        return value if value == "group" else tensors.setdefault(value, torch.zeros(1))

    given = tuple(made(value) for value in args)
    wanted = {"in": ["in"], "out": ["out"]}

    assert [id(t) for t in operands(func, given)] == [id(tensors[n]) for n in wanted.get(sent, list(sent))]
    assert [id(t) for t in result_of(func, given, None)] == [id(tensors[n]) for n in wanted.get(came, list(came))]


@pytest.mark.usefixtures("two_ranks")
def test_a_value_follows_a_collective_in_the_trace_and_is_not_kept_to_be_executed_again():
    tracer = OpTracer(OpContext(lambda _: None), lambda _: ("external", ""))

    with tracer:
        bad = torch.log(torch.zeros(2)) * 0.0
        torch.distributed.all_reduce(bad)

    node = next(n for n in tracer.nodes if n.traced.is_collective)
    assert node.traced.op == "c10d.allreduce_.default"
    assert node.func is None
    assert [edge.producer for edge in tracer.sent()] == [node.traced.inputs[0].producer]
    assert tracer.edge_to(bad).producer == node.traced.index


def test_memory_that_is_only_written_to_is_not_read():
    garbage = torch.full((4,), float("nan"))
    tracer = OpTracer(OpContext(lambda _: None), lambda _: ("external", ""))

    with tracer:
        torch.cat([torch.ones(2), torch.ones(2)], out=garbage)

    assert all(not leaf.bits for leaf in tracer.leaves)
    assert tracer.edge_to(garbage).bits == 0
