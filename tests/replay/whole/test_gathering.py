"""Parts are gathered when an operation reads them; what does not fit goes, and comes again."""

import pytest
import torch

from hypocenter.replay.impossible import ReplayImpossible
from hypocenter.replay.whole.model import Gathering, OnDemand
from hypocenter.replay.whole.part import Part, StandIn, stand_in
from hypocenter.tap.op_context import OpContext
from hypocenter.tap.tracer import OpTracer


def part_of(values, group):
    """This rank holds the first half of the values."""
    flat = values.flatten()
    tensor = stand_in(values.shape, values.dtype, values.device, requires_grad=True)
    half = (flat.numel() + 1) // 2
    return Part(
        shard=lambda: flat[:half], group=group, stand_ins=[StandIn(tensor=tensor, holders=[])], covered=[]
    ), torch.nn.functional.pad(flat[half:], (0, 2 * half - flat.numel()))


def parts_of(values, group):
    both = [part_of(v, group) for v in values]
    return [p for p, _ in both], dict(enumerate(other for _, other in both))


def nobody(_):
    pass


def test_what_is_read_has_the_values_of_all_ranks(group, other_rank):
    values = [torch.randn(3, 5), torch.randn(7)]
    parts, sends = parts_of(values, group)
    first, second = (p.stand_ins[0].tensor for p in parts)

    with OnDemand(Gathering(parts, other_rank(sends), 1 << 20), nobody):
        total = first.sum() + second.t().sum()

    assert torch.equal(first, values[0])
    assert torch.equal(second, values[1])
    assert torch.equal(total, values[0].sum() + values[1].sum())


def test_nothing_is_gathered_twice_while_it_fits(group, other_rank):
    parts, sends = parts_of([torch.randn(4, 4)], group)
    others = other_rank(sends)
    weight = parts[0].stand_ins[0].tensor

    with OnDemand(Gathering(parts, others, 1 << 20), nobody):
        (weight @ weight @ weight).sum().backward()

    assert others.gathered == [0]


def test_a_network_larger_than_the_limit_gives_the_same_bits_as_one_that_fits(group, other_rank):
    torch.manual_seed(0)
    values = [torch.randn(6, 6) for _ in range(4)]
    x = torch.randn(2, 6)
    plain = [v.clone().requires_grad_() for v in values]
    parts, sends = parts_of(values, group)
    others = other_rank(sends)
    stand_ins = [p.stand_ins[0].tensor for p in parts]

    def loss(weights):
        h = x
        for weight in weights:
            h = torch.tanh(h @ weight)
        return h.square().sum()

    loss(plain).backward()
    with OnDemand(Gathering(parts, others, parts[0].n_bytes), nobody):
        loss(stand_ins).backward()

    assert others.gathered == [0, 1, 2, 3, 2, 1]  # the last is still there, and the input needs no gradient
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain, stand_ins, strict=True))


def test_what_a_trace_has_captured_outlives_its_part(group, other_rank):
    values = [torch.full((2, 2), 1e30), torch.ones(2, 2)]
    parts, sends = parts_of(values, group)
    big, small = (p.stand_ins[0].tensor for p in parts)
    tracer = OpTracer(OpContext(lambda _: None), lambda _: ("param", ""))

    with tracer, OnDemand(Gathering(parts, other_rank(sends), parts[0].n_bytes), tracer.keep_captured):
        overflowed = big * 1e30
        small.sum()

    (node,) = [n for n in tracer.nodes if n.func is not None]
    assert torch.isinf(overflowed).all()
    assert big.untyped_storage().nbytes() == 0
    assert torch.equal(node.args[0], values[0])


def test_ranks_in_different_places_end_the_replay(group, other_rank):
    parts, sends = parts_of([torch.randn(4)], group)
    others = other_rank(sends)
    others.says = 5

    with (
        pytest.raises(ReplayImpossible, match="different orders"),
        OnDemand(Gathering(parts, others, 1 << 20), nobody),
    ):
        parts[0].stand_ins[0].tensor.sum()


def test_without_groups_nothing_is_gathered(group):
    parts, _ = parts_of([torch.randn(4)], group)

    with pytest.raises(ReplayImpossible, match="one rank"), OnDemand(Gathering(parts, None, 1 << 20), nobody):
        parts[0].stand_ins[0].tensor.sum()


def test_what_is_whole_here_needs_nobody():
    parts, _ = parts_of([torch.randn(1)], None)

    with OnDemand(Gathering(parts, None, 1 << 20), nobody):
        total = parts[0].stand_ins[0].tensor.sum()

    assert torch.equal(total, parts[0].shard().sum())


def test_a_piece_that_runs_down_its_columns_lies_so_again(group, other_rank):
    columns = torch.randn(3, 2).t()  # strides 1, 2
    flat = columns.as_strided((6,), (1,))
    tensor = stand_in(columns.shape, columns.dtype, columns.device, requires_grad=True, stride=columns.stride())
    part = Part(shard=lambda: flat[:3], group=group, stand_ins=[StandIn(tensor=tensor, holders=[])], covered=[])

    with OnDemand(Gathering([part], other_rank({0: flat[3:]}), 1 << 20), nobody):
        tensor.sum()

    assert torch.equal(tensor, columns)
    assert tensor.stride() == columns.stride()
