"""The op trace of a replay: places, data flow, and what the dispatch mode does not show."""

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from hypocenter.diagnose.origin import blame
from hypocenter.replay.mindspore.engine import Replayer
from hypocenter.replay.mindspore.investigate import blamed, traced
from hypocenter.tap.mindspore.names import NameMap
from hypocenter.tap.mindspore.tape import GradCall, random_state


class FeedForward(nn.Cell):
    def __init__(self):
        super().__init__()
        self.wi = nn.Dense(8, 16)
        self.wo = nn.Dense(16, 8)
        self.to_float(ms.float16)

    def construct(self, x):
        h = ops.relu(self.wi(x))
        h = h * h
        return self.wo(h)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((8,))
        self.ffn = FeedForward()

    def construct(self, x, scale):
        return self.ffn(self.norm(x) * scale).astype(ms.float32)


def trace_of(net, fn, *args):
    names = NameMap()
    names.add_root(net)
    call = GradCall(number=0, batch=0, fn=fn, args=args, weights=tuple(net.trainable_params()), random=random_state())
    return call, *traced(Replayer(names, contextlib.nullcontext), names, call)


@pytest.fixture(name="net")
def _net():
    ms.set_seed(1)
    return Net()


def batch():
    return Tensor(np.random.default_rng(0).normal(size=(4, 2, 8)).astype(np.float32))


def test_healthy_step_has_no_origin(net):
    call, tracer, replayed = trace_of(net, lambda x, s: (net(x, s) ** 2).mean(), batch(), Tensor(1.0, ms.float32))

    assert not tracer.broken
    assert replayed.finite
    assert blamed(tracer, call, replayed) is None


def test_overflow_in_forward_is_found_at_the_product(net):
    _, tracer, replayed = trace_of(net, lambda x, s: (net(x, s) ** 2).mean(), batch(), Tensor(2000.0, ms.float32))

    found = blame(tracer.trace(), [tracer.edge_to(value) for value in replayed.values])

    assert found is not None
    assert found.origin is not None
    node = tracer.nodes[found.origin]
    assert (node.traced.op, node.place.phase, node.place.site, node.place.module) == (
        "Mul",
        "forward",
        "ffn",
        "FeedForward",
    )
    assert node.place.source().text == "h = h * h"


def test_backward_operators_stand_at_the_forward_line_whose_gradient_they_are(net):
    _, tracer, _ = trace_of(net, lambda x, s: (net(x, s) ** 2).mean(), batch(), Tensor(1.0, ms.float32))

    of_relu = [node for node in tracer.nodes if node.traced.op == "ReluGrad"]

    assert [(n.place.phase, n.place.site, n.place.forward_op) for n in of_relu] == [("backward", "ffn", "ReLU")]
    assert "relu" in of_relu[0].place.source().text


def test_replay_that_raises_leaves_the_next_gradient_whole(net):
    names = NameMap()
    names.add_root(net)
    per_sample = Tensor(np.ones((4, 1), np.float32))
    scale = Tensor(1.0, ms.float32)

    def loss(x):  # wants exactly this batch size
        return (net(x, scale).sum(-1) * per_sample).sum()

    weights = tuple(net.trainable_params())
    call = GradCall(number=0, batch=0, fn=loss, args=(batch(),), weights=weights, random=random_state())
    before = [g.asnumpy() for g in ms.grad(loss, None, weights)(batch())]

    with pytest.raises(ValueError, match="broadcast"):
        Replayer(names, contextlib.nullcontext).run(call, rows=(4, [0, 2, 3]))

    after = [g.asnumpy() for g in ms.grad(loss, None, weights)(batch())]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_slices_are_followed_in_both_directions():
    net = nn.Dense(8, 4)

    def loss(x):
        y = ops.relu(net(x)) * 0
        root = ops.sqrt(y)
        return root[:, :2].sum()

    call, tracer, replayed = trace_of(net, loss, batch()[:, 0])
    found = blamed(tracer, call, replayed)

    assert not tracer.broken
    assert "GetItem" in [node.traced.op for node in tracer.nodes]
    assert found is not None
    assert found.origin is not None
    assert tracer.nodes[found.origin].place.forward_op == "Sqrt"
    assert "__getitem__" not in vars(Tensor)
